"""What came and went through the MQTT door, in numbers.

Added to once for a run of messages or a write, never for each message. Compiled by mypyc; the same
source runs interpreted.
"""

from __future__ import annotations


class Traffic:
    """Totals since the broker started."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "clients_max",
        "connects",
        "controls_received",
        "controls_sent",
        "publish_bytes_received",
        "publish_bytes_sent",
        "publishes_received",
        "publishes_sent",
        "sessions_expired",
        "sockets",
    )

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0
        self.publishes_received = 0  # PUBLISH packets
        self.publishes_sent = 0
        self.publish_bytes_received = 0  # their bytes on the wire
        self.publish_bytes_sent = 0
        self.controls_received = 0  # packets of any other kind
        self.controls_sent = 0
        self.sockets = 0  # connections that were taken
        self.connects = 0  # of which so many said CONNECT
        self.clients_max = 0  # connected at the same time
        self.sessions_expired = 0

    @property
    def packets_received(self) -> int:
        return self.publishes_received + self.controls_received

    @property
    def packets_sent(self) -> int:
        return self.publishes_sent + self.controls_sent
