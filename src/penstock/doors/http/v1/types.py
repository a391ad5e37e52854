"""What `/v1` takes and gives, as types: requests are checked by them, OpenAPI shows them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.doors.http.routing.schemas import (
    BASE64,
    DURABILITY,
    FILTER,
    HISTORY,
    NAME,
    OFFSETS,
    PARTITIONS,
    POSITION_IN_BODY,
    RETENTION_AGE,
    RETENTION_BYTES,
    RULE,
    SEGMENT_AGE,
    SEGMENT_BYTES,
    TIME,
    TOPIC,
    WHERE,
    shown_as,
)
from penstock.model.limits import KEY_CHARS_MAX, PASSWORD_BYTES_MAX
from penstock.model.record import KindName, Offsets, TopicInfo

Position = Annotated[str | int | dict[str, int], shown_as(POSITION_IN_BODY)]


_Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Problem(Struct, omit_defaults=True):
    """What went wrong (RFC 9457)."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"
    error: str = ""  # the class of the error, such as TopicNotFound


class TopicSettings(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of a topic; null keeps for ever, or without a bound.

    Shown only: requests are checked by core.topic_settings, as those of a Broker are.
    """

    retention_age: Annotated[Any, shown_as(RETENTION_AGE)] = UNSET
    retention_bytes: Annotated[Any, shown_as(RETENTION_BYTES)] = UNSET
    durability: Annotated[Any, shown_as(DURABILITY)] = UNSET
    segment_bytes: Annotated[Any, shown_as(SEGMENT_BYTES)] = UNSET
    segment_age: Annotated[Any, shown_as(SEGMENT_AGE)] = UNSET
    history: Annotated[Any, shown_as(HISTORY)] = UNSET
    history_age: Annotated[Any, shown_as(RETENTION_AGE)] = UNSET
    partitions: Annotated[Any, shown_as(PARTITIONS)] = UNSET


class TopicList(Struct):
    topics: list[TopicInfo]


class Place(Struct):
    """Where a position stands: in [first_offset, end_offset] unless retention took it.

    `partition` of the query names one of several.
    """

    topic: str
    epoch: int
    offset: int
    first_offset: int
    end_offset: int


Headers = list[tuple[str, str]]
_HEADER: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 4_000}
_VALUE: dict[str, Any] = {"type": "string", "maxLength": 4_000}
_PAIR: dict[str, Any] = {
    "type": "array",
    "prefixItems": [_HEADER, _VALUE],
    "items": False,
    "minItems": 2,
    "maxItems": 2,
}
_HEADERS: dict[str, Any] = {
    "description": "at most 65,535 bytes in all",
    "anyOf": [
        {"type": "array", "items": _PAIR},
        {"type": "object", "propertyNames": _HEADER, "additionalProperties": _VALUE},
    ],
}


class Message(Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A message to store: a text or JSON value in `payload`, or bytes in `payload_base64`."""

    payload: Any = UNSET
    payload_base64: Annotated[str | UnsetType, shown_as(BASE64)] = UNSET
    name: Annotated[str | UnsetType, shown_as(NAME)] = UNSET  # else the topic's own
    headers: Annotated[Headers | dict[str, str] | UnsetType, shown_as(_HEADERS)] = UNSET
    retain: bool = False


_ONE: dict[str, Any] = {
    "$ref": "#/components/schemas/Message",
    "oneOf": [{"required": ["payload"]}, {"required": ["payload_base64"]}],
}
_MESSAGES: dict[str, Any] = {"anyOf": [_ONE, {"type": "array", "items": _ONE, "minItems": 1}]}
MessagesIn = Annotated[Message | list[Message], shown_as(_MESSAGES)]


class Stored(Struct):
    """Where a message lies; with its partition where the topic has several."""

    offset: int
    partition: int | UnsetType = UNSET


class Results(Struct):
    """One for each message, in their order: offsets [first_offset, end_offset).

    Where the topic has several partitions, these are offsets by partition.
    """

    topic: str
    first_offset: Offsets
    end_offset: Offsets
    results: list[Stored]


class RecordOut(Struct, omit_defaults=True, gc=False):
    """A stored message. `kind` says what was published: text, json, bytes; or that it was erased.

    Bytes that are UTF-8 come as `payload`, others as `payload_base64`.
    """

    offset: int
    timestamp: int  # µs since 1970, UTC
    name: str
    payload: Any = UNSET
    payload_base64: str | UnsetType = UNSET
    kind: KindName = "text"
    headers: Headers | UnsetType = UNSET
    publisher: str = ""
    qos: int = 1
    retain: bool = False
    expires_at: int | None = None
    partition: int = 0


class Records(Struct):
    """Records from `first_offset` on; the next to ask for is `next_offset`.

    Where the topic has several partitions, these are offsets by partition.
    """

    topic: str
    first_offset: Offsets
    next_offset: Offsets
    end_offset: Offsets  # one past the last record of the topic, when this was read
    records: list[RecordOut]


class Erase(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Which records to erase; `before` is a time, or a duration back from now such as -30d."""

    names: Annotated[str, shown_as(FILTER)]
    before: Annotated[str | None, shown_as(TIME)] = None
    dry_run: bool = False  # only count


class Subscribe(Struct, omit_defaults=True, forbid_unknown_fields=True, rename={"start": "from"}):
    """Where a new consumer starts."""

    start: Position = "earliest"


class ConsumerOut(Struct):
    consumer: str
    next_offset: Offsets
    waiting: int  # records it has not been given yet


class ConsumerList(Struct):
    consumers: list[ConsumerOut]


class Fetch(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What a consumer wants next; with `commit` this counts as handled when it fetches again."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    where: Annotated[str, shown_as(WHERE)] | None = None
    wait: Annotated[float, Meta(ge=0, le=60, description="seconds to wait for a record")] = 0.0
    commit: bool = True
    on_gap: Literal["skip", "error"] = "skip"
    key: Annotated[
        str,
        Meta(
            max_length=KEY_CHARS_MAX,
            description="identifies this batch: the same key returns the same records again",
        ),
    ] = ""
    # Returns more of the batch that `key` identifies, from this offset on.
    offset: Annotated[_Offset | dict[str, _Offset], shown_as(OFFSETS)] | None = None


class Commit(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """All before `offset` is handled; without it, all that was given out."""

    # The topic checks it: its answer names the offsets that are allowed.
    offset: Annotated[Offsets, shown_as(OFFSETS)] | None = None


class Committed(Struct):
    offset: Offsets


class Seek(Struct, forbid_unknown_fields=True, rename={"start": "from"}):
    """Where to go on."""

    start: Position


class Binding(Struct, forbid_unknown_fields=True):
    """Names that match `filter` are placed in `topic`."""

    filter: Annotated[str, shown_as(FILTER)]
    topic: Annotated[str, shown_as(TOPIC)]


class BindingList(Struct):
    bindings: list[Binding]


StoredRow = list[str | int]  # the columns of one table


class SessionOut(Struct):
    """A session of an MQTT client; `waiting` are messages it has not been sent yet."""

    client_id: str
    user: str
    is_connected: bool
    subscriptions: int
    outstanding: int
    waiting: int
    is_exact: bool  # else at least so many wait
    expiry_s: int


class SubscriptionOut(Struct):
    filter: str
    qos: int


class SessionDetail(SessionOut):
    filters: list[SubscriptionOut]


class SessionList(Struct):
    """With `after` there are more: ask for those behind it."""

    sessions: list[SessionOut]
    after: str | None


class StoredSessions(Struct):
    """Persistent sessions as they are stored, in rows, which Spark jobs match with records."""

    sessions: list[StoredRow]  # client id, whether it is connected
    subscriptions: list[StoredRow]  # client id, filter, QoS, options, since, feed, expression
    session_positions: list[StoredRow]  # client id, topic id, epoch, next offset
    feed_positions: list[StoredRow]  # client id, feed, topic id, epoch, next offset
    outstanding: list[StoredRow]  # client id, feed, topic id, offset
    levels: list[StoredRow]  # topic id, epoch, offset


class Kick(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """`forget` drops the session too, with what waits for it."""

    forget: bool = False


class Kicked(Struct):
    client_id: str
    was_connected: bool
    forgotten: bool


_CREDENTIAL: dict[str, Any] = {
    "type": "string",
    "enum": ["password", "key", "certificate", "token", "none"],
}


class ClientOut(Struct):
    """A client that the broker remembers; times are µs since 1970, UTC."""

    client_id: str
    owner: str  # the user who connected with it last; empty for an anonymous client
    credential_type: Annotated[str, shown_as(_CREDENTIAL)]
    credential: str  # id of the key or fingerprint of the certificate
    certificate_name: str
    last_address: str
    first_seen: int
    last_seen: int
    is_connected: bool
    has_session: bool


class ClientList(Struct):
    """With `after` there are more: ask for those behind it."""

    clients: list[ClientOut]
    after: str | None


ROLES_MAX: Final = 100  # of one user


class UserIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A new user needs a password; what is missing for an existing user stays as it is."""

    password: Annotated[str, Meta(min_length=1, max_length=PASSWORD_BYTES_MAX)] | UnsetType = UNSET
    roles: Annotated[list[str], Meta(max_length=ROLES_MAX)] | UnsetType = UNSET
    keep_keys: bool = False  # else a new password revokes the keys of the user


class UserOut(Struct):
    """A user; times are µs since 1970, UTC."""

    user: str
    created_at: int
    changed_at: int
    roles: list[str]


class UserList(Struct):
    users: list[UserOut]


class TenantIn(Struct, forbid_unknown_fields=True):
    """Whom to ask about a tenant."""

    first_name: str = ""
    last_name: str = ""
    email: str = ""


class TenantOut(Struct):
    """A tenant; `created_at` is µs since 1970, UTC."""

    tenant: str
    first_name: str
    last_name: str
    email: str
    created_at: int


class TenantList(Struct):
    tenants: list[TenantOut]


RoleNames = Annotated[list[str], Meta(max_length=ROLES_MAX)]


class KeyIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Without roles, a key has those of its user."""

    roles: RoleNames = []


class KeyMade(Struct):
    """`key` is told this once."""

    user: str
    key: str


class KeyOut(Struct):
    """`roles` is empty if the key has those of its user."""

    key_id: str
    user: str
    created_at: int
    roles: list[str]


class KeyList(Struct):
    keys: list[KeyOut]


class Reloaded(Struct):
    problems: list[str]  # what could not be used; it stays as it was


class SnapshotOut(Struct):
    snapshot: str  # its name in the directory `.snapshots`


RULES_MAX: Final = 10_000  # in one request
RuleText = Annotated[str, shown_as(RULE)]
RuleTexts = Annotated[list[RuleText], Meta(max_length=RULES_MAX)]


class RoleIn(Struct, forbid_unknown_fields=True):
    """The role has exactly these rules."""

    rules: RuleTexts


class RoleOut(Struct):
    """A role of `kind` declared is in the settings file, and as unchangeable as a built-in one."""

    role: str
    kind: Literal["built-in", "declared", "added"]
    rules: list[str]


class RoleList(Struct):
    roles: list[RoleOut]


class RulesIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Rules of a role or of a user; of everybody if neither is given."""

    rules: RuleTexts
    role: str = ""
    user: str = ""


class RuleOut(Struct, omit_defaults=True):
    """A rule of a role or of a user, or of everybody; `id` is 0 if it is in the settings file."""

    id: int
    rule: str
    role: str = ""
    user: str = ""


class RuleList(Struct):
    rules: list[RuleOut]


class Allowed(Struct):
    """`rule` is null if no rule says anything; `source` is what it belongs to: `role client`."""

    allowed: bool
    rule: str | None
    source: str
