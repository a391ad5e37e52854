"""What an operator can say about MQTT clients; every bound has a default that does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.doors.lingering import LINGER_BYTES_MAX, LINGER_S_MAX
from penstock.model.limits import WILL_GRACE_S
from penstock.mqtt.kinds import MQTT_5


@dataclass(frozen=True, slots=True)
class MqttLimits:
    """Settings of the MQTT door, except the addresses."""

    connect_s_max: float = 10.0  # from the connection to the end of its login
    connections_max: int = 100_000
    keep_alive_s_max: int = 0  # what an MQTT 5 client is given if it asks for more; 0: no limit
    will_grace_s: int = WILL_GRACE_S  # after a start, for clients to come back before wills are due
    sys_interval_s: int = 10  # between updates of what the broker says about itself; 0: never
    queue_qos0: bool = False  # keep messages of QoS 0 for sessions whose clients are away
    auto_create_topics: int = 0  # topics that publishing may create; 0: none
    session_expiry_s_max: int = 90 * 86_400  # how long a session is kept for a client that is away
    linger_s_max: float = LINGER_S_MAX  # for a client to read why its connection ended
    proxy_protocol: bool = False  # trusted proxies begin connections with a PROXY header
    linger_bytes_max: int = LINGER_BYTES_MAX  # that it still sends meanwhile

    def keep_alive_s(self, version: int, asked_s: int) -> int:
        """The keep alive that counts; before MQTT 5 a client cannot be told another one."""
        most_s = self.keep_alive_s_max
        if version == MQTT_5 and most_s and (asked_s == 0 or asked_s > most_s):
            return most_s
        return asked_s

    def session_expiry_s(self, asked_s: int) -> int:
        """How long a session outlives its connection."""
        return min(asked_s, self.session_expiry_s_max)


DEFAULT_LIMITS: Final = MqttLimits()
