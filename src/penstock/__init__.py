"""Penstock: MQTT and HTTP in, one fsynced log, Spark tables and streams out."""

from penstock.app.aio import AsyncBroker
from penstock.app.sync import Broker
from penstock.model.errors import (
    AlreadySubscribed,
    CorruptError,
    Gap,
    InvalidExpression,
    InvalidFilter,
    InvalidName,
    InvalidPosition,
    InvalidSetting,
    InvalidTopic,
    NotAuthorized,
    NotSubscribed,
    PeerError,
    PenstockError,
    RefusedError,
    TooLarge,
    TopicExists,
    TopicNotFound,
    UnavailableError,
)
from penstock.model.record import ConsumerInfo, Record, TopicInfo

__version__ = "0.1.0"

__all__ = [
    "AlreadySubscribed",
    "AsyncBroker",
    "Broker",
    "ConsumerInfo",
    "CorruptError",
    "Gap",
    "InvalidExpression",
    "InvalidFilter",
    "InvalidName",
    "InvalidPosition",
    "InvalidSetting",
    "InvalidTopic",
    "NotAuthorized",
    "NotSubscribed",
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
]
