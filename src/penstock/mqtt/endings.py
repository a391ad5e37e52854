"""What a server means that says no: an error for whoever asked."""

from __future__ import annotations

from typing import Final

from penstock.model.errors import RefusedError, UnavailableError
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason, describe

PASSING: Final = frozenset(  # reasons that will be gone by themselves
    {
        Reason.SERVER_UNAVAILABLE,
        Reason.SERVER_BUSY,
        Reason.SERVER_SHUTTING_DOWN,
        Reason.KEEP_ALIVE_TIMEOUT,
        Reason.CONNECTION_RATE_EXCEEDED,
        Reason.MAXIMUM_CONNECT_TIME,
    }
)


def refused(what: str, reason: Reason, properties: Properties = NO_PROPERTIES) -> RefusedError:
    """The server understood and said no."""
    text = f": {properties.reason_string}" if properties.reason_string else ""
    return RefusedError(f"{what} {describe(reason)}{text}")


def ended(what: str, reason: Reason, properties: Properties) -> RefusedError | UnavailableError:
    """The server does not want us, now or at all."""
    error = refused(what, reason, properties)
    return UnavailableError(str(error)) if reason in PASSING else error


def lost(failed: OSError | None) -> UnavailableError:
    """The connection is gone."""
    why = "closed by the server" if failed is None else str(failed.strerror or failed)
    return UnavailableError(f"the connection was lost: {why}")
