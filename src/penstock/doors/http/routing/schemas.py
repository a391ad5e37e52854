"""What texts and numbers of a request look like, as JSON Schema, for the OpenAPI document.

A schema states the same rules as the checks of `core`, if a regular expression can.
Others have a format instead: `penstock-where` (filter expressions), `penstock-rule`,
`penstock-user`.
These schemas are shown, never used to check: refusals come from `core`, with the way out in them.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Meta

from penstock.core.access import ACTIONS
from penstock.core.access.roles import ROLE_CHARS_MAX
from penstock.core.access.rules import RULE_CHARS_MAX
from penstock.core.naming.names import INVISIBLE
from penstock.core.position import OFFSET_END
from penstock.core.topic_settings import DURABILITIES, PARTITIONS_MAX
from penstock.model.limits import (
    CONSUMER_CHARS_MAX,
    EXPRESSION_CHARS_MAX,
    KEY_CHARS_MAX,
    KIB,
    NAME_LEVELS_MAX,
    TOPIC_CHARS_MAX,
    USER_CHARS_MAX,
)

Schema = dict[str, Any]
SHOWN_AS: Final = "x-shown-as"  # replaces the schema that it stands in

TEXT: Final[Schema] = {"type": "string"}
_CONTROL: Final = r"\u0000-\u001f\u007f-\u009f"
_LEVEL: Final = r"[^+#/\u0000]*"
_FILTER_LEVEL: Final = rf"(\+|{_LEVEL})"
_DURATION: Final = "([0-9]{1,6}d)?([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?([0-9]{1,6}ms)?"


def shown_as(schema: Schema) -> Meta:
    """Have a type shown as this schema, whatever it is checked by; see `openapi.document`."""
    return Meta(extra_json_schema={SHOWN_AS: schema})


def text(pattern: str, chars_max: int | None = None) -> Schema:
    schema: Schema = {"type": "string", "pattern": pattern, "minLength": 1}
    return schema if chars_max is None else schema | {"maxLength": chars_max}


def number(minimum: int, maximum: int) -> Schema:
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


TOPIC: Final = text(
    rf"^(?!\.{{1,2}}$)(?![{INVISIBLE}]+$)[^$/+#{_CONTROL}][^/+#{_CONTROL}]*$", TOPIC_CHARS_MAX
)
LABEL: Final = text(rf"^[^{_CONTROL}]+$", CONSUMER_CHARS_MAX)  # of a consumer, a group
NAME: Final = text(rf"^{_LEVEL}(/{_LEVEL}){{0,{NAME_LEVELS_MAX - 1}}}$")
FILTER: Final = text(rf"^(#|{_FILTER_LEVEL}(/{_FILTER_LEVEL}){{0,{NAME_LEVELS_MAX - 2}}}(/#)?)$")
WHERE: Final[Schema] = {
    "type": "string",
    "format": "penstock-where",
    "minLength": 1,
    "maxLength": EXPRESSION_CHARS_MAX,
    "examples": ["payload.celsius > 30"],
}
USER: Final[Schema] = {
    "type": "string",
    "format": "penstock-user",
    "minLength": 1,
    "maxLength": USER_CHARS_MAX,
}
ROLE: Final = text("^[A-Za-z0-9._-]+$", ROLE_CHARS_MAX)
RULE: Final[Schema] = {
    "type": "string",
    "format": "penstock-rule",
    "minLength": 1,
    "maxLength": RULE_CHARS_MAX,
    "examples": ["allow publish sensors/%u/#", "deny receive,read topic:payroll"],
}
ACTION: Final[Schema] = {"type": "string", "enum": list(ACTIONS)}
KEY: Final = text(r"^[!-~]([ -~]*[!-~])?$", KEY_CHARS_MAX)
OFFSET: Final = number(0, OFFSET_END - 1)
PARTITIONS: Final = number(1, PARTITIONS_MAX)
OFFSETS_BY_PARTITION: Final[Schema] = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,9}$"},
    "additionalProperties": OFFSET,
    "minProperties": 1,
}
OFFSETS: Final[Schema] = {"anyOf": [OFFSET, OFFSETS_BY_PARTITION]}
_TIMES: Final[list[Schema]] = [
    text(rf"^-(?=[0-9]){_DURATION}$"),
    {"type": "string", "format": "date-time"},
]
TIME: Final[Schema] = {
    "anyOf": [*_TIMES, {"type": "null"}],
    "description": "an RFC 3339 time, or a duration back from now such as -30d",
}
_POSITIONS: Final[list[Schema]] = [
    {"type": "string", "enum": ["earliest", "latest"]},
    OFFSET,
    text("^[0-9]{1,18}$"),
    *_TIMES,
]
_POSITION_SAYS: Final = (
    "earliest, latest, an offset, an RFC 3339 time, a duration back such as -24h, or an offset for "
    'each partition such as {"0": 23, "1": 7}'
)
POSITION: Final[Schema] = {"anyOf": _POSITIONS, "description": _POSITION_SAYS}  # in a query
POSITION_IN_BODY: Final[Schema] = {
    "anyOf": [*_POSITIONS, OFFSETS_BY_PARTITION],
    "description": _POSITION_SAYS,
}
BASE64: Final = {
    "type": "string",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
DURABILITY: Final = {"type": "string", "enum": list(DURABILITIES)}

_SECONDS: Final[Schema] = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e12}
_AGE: Final = text(rf"^(?=.*[1-9]){_DURATION}$")
_SIZE: Final = text("^[1-9][0-9]{0,8} ?(B|KiB|MiB|GiB)?$")
_UNLIMITED: Final[Schema] = {"type": "string", "enum": ["unlimited"]}
_NULL: Final[Schema] = {"type": "null"}
RETENTION_AGE: Final[Schema] = {"anyOf": [_SECONDS, _AGE, _UNLIMITED, _NULL]}
RETENTION_BYTES: Final[Schema] = {
    "anyOf": [number(1, (1 << 62) - 1), _SIZE, _UNLIMITED, _NULL],
}
SEGMENT_AGE: Final[Schema] = {"anyOf": [_SECONDS, _AGE]}
SEGMENT_BYTES: Final[Schema] = {
    "anyOf": [number(64 * KIB, (1 << 62) - 1), text("^[1-9][0-9]{0,5} ?(MiB|GiB)$")],
}

HISTORY: Final[Schema] = {"type": "boolean"}

PATH: Final = {
    "topic": TOPIC,
    "consumer": LABEL,
    "group": LABEL,
    "user": USER,
    "role": ROLE,
    "offset": OFFSET,
}
