"""Penstock: MQTT and HTTP in, one fsynced log, Spark tables and streams out.

Only the errors are here from the start. The rest is imported when first asked for: the command line
and Spark tasks import this package too, and pay only for what they use.
"""

from typing import TYPE_CHECKING, Any

from penstock.model.errors import (
    AlreadySubscribed,
    CorruptError,
    Gap,
    HandlerError,
    InvalidExpression,
    InvalidFilter,
    InvalidName,
    InvalidPosition,
    InvalidSetting,
    InvalidTopic,
    NotAuthorized,
    NotSubscribed,
    OffsetBeyondEnd,
    OutcomeUnknown,
    PeerError,
    PenstockError,
    RefusedError,
    TooLarge,
    TopicExists,
    TopicNotFound,
    UnavailableError,
)
from penstock.model.version import VERSION as __version__

if TYPE_CHECKING:
    from penstock import aio
    from penstock.app.aio import AsyncBroker
    from penstock.app.bus import Bus
    from penstock.app.sync import Broker
    from penstock.client.sync import connect
    from penstock.model.record import ConsumerInfo, Record, TopicInfo

__all__ = [
    "AlreadySubscribed",
    "AsyncBroker",
    "Broker",
    "Bus",
    "ConsumerInfo",
    "CorruptError",
    "Gap",
    "HandlerError",
    "InvalidExpression",
    "InvalidFilter",
    "InvalidName",
    "InvalidPosition",
    "InvalidSetting",
    "InvalidTopic",
    "NotAuthorized",
    "NotSubscribed",
    "OffsetBeyondEnd",
    "OutcomeUnknown",
    "PeerError",
    "PenstockError",
    "Record",
    "RefusedError",
    "TooLarge",
    "TopicExists",
    "TopicInfo",
    "TopicNotFound",
    "UnavailableError",
    "__version__",
    "aio",
    "connect",
]

_LATE = {
    "AsyncBroker": "penstock.app.aio",
    "Broker": "penstock.app.sync",
    "Bus": "penstock.app.bus",
    "ConsumerInfo": "penstock.model.record",
    "Record": "penstock.model.record",
    "TopicInfo": "penstock.model.record",
    "aio": "penstock.aio",
    "connect": "penstock.client.sync",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LATE[name])
    value = globals()[name] = module if name == "aio" else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
