"""What bridges say of their own connections: `$SYS/broker/connection/{client id}/state`.

Mosquitto's bridges publish `1` there when they have connected, and leave `0` as their will. Like
everything under `$SYS` it is in memory only and in no log; a bridge says it again after a restart
of the broker, since it has to connect again. Each client may speak of its own connection alone, and
both the number of states and their size are bounded.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.deliver.routes import Router, forward
from penstock.core.delivery.run import Run

STATES_MAX: Final = 1_000  # kept; then the one that was said the longest ago is forgotten
STATE_BYTES_MAX: Final = 256  # of a payload; Mosquitto needs one byte


def is_state_of(name: str, client_id: str) -> bool:
    """Is this the name under which the client says how its connection is?"""
    return name == f"$SYS/broker/connection/{client_id}/state"


class States:
    """The newest retained state of each connection, by its whole name."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.values: dict[str, bytes] = {}

    def take(self, run: Run) -> bool:
        """Keep and hand on what a client says of its connection; False if the run is not that."""
        if not is_state_of(run.name, run.publisher) or max(run.lengths) > STATE_BYTES_MAX:
            return False
        if run.retain:
            self.values.pop(run.name, None)
            value = run.data[run.starts[-1] : run.starts[-1] + run.lengths[-1]]
            if value:
                if len(self.values) >= STATES_MAX:
                    del self.values[next(iter(self.values))]
                self.values[run.name] = value
        forward(self._router.find(run.name).lanes, run)
        return True
