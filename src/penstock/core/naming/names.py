"""Which texts may be topics, names, filters and consumers, and which names a filter matches.

Every `check_…` returns its argument unchanged or raises a RefusedError that gives the value, the
rule and the way out. Whatever passed a check is well-formed Unicode and can be written as UTF-8.
Topics are equal when their `topic_key` is equal; names, filters and consumers are compared as
they are.
"""

from __future__ import annotations

import re
import reprlib
import unicodedata
from itertools import zip_longest
from typing import Final

from penstock.model.errors import InvalidFilter, InvalidName, InvalidTopic, RefusedError
from penstock.model.limits import (
    CONSUMER_CHARS_MAX,
    NAME_BYTES_MAX,
    NAME_LEVELS_MAX,
    TENANT_CHARS_MAX,
    TOPIC_CHARS_MAX,
)
from penstock.model.record import TenantId

SLUG_CHARS_MAX: Final = 40  # with a topic id behind it still far below any file system's 255 bytes
SHOWN_CHARS_MAX: Final = 60  # of a value in an error message: enough to recognise it in a log line
# A tenant's name is a directory, a label of metrics and the part of a login before the '/'.
TENANT: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")
FILE_NAMES: Final = ("lock", "reserve")  # of the data directory; no tenant is called so
# White space and what Unicode calls default ignorable, and characters that are drawn as nothing:
# the inside of a character class, for people's programs, too (doors/http/routing/schemas.py).
INVISIBLE: Final = (
    r"\u0020\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    r"\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_VISIBLE: Final = re.compile(f"[^{INVISIBLE}]")
SHARE_PREFIX: Final = "$share/"
AUDIT_TOPIC: Final = "$audit"  # built in: only the broker writes to it
DEAD_SUFFIX: Final = ".dead"  # of the topic for dead letters of another topic
SHOWN_BITS_MAX: Final = 256  # Python refuses to print integers of more than some 4,000 digits


def check_topic(topic: str) -> str:
    """A text that may be declared as a topic; else InvalidTopic."""
    _check_label(topic, "topic name", TOPIC_CHARS_MAX, InvalidTopic)
    for char in "/+#":
        if char in topic:
            raise InvalidTopic(
                f"topic name {quoted(topic)} contains {char!r}: levels and wildcards belong in "
                "names and filters; declare the first level and publish names below it"
            )
    if topic.startswith("$"):
        raise InvalidTopic(
            f"topic name {quoted(topic)} begins with '$': such names belong to the broker; "
            "begin with another character"
        )
    if topic in (".", ".."):
        raise InvalidTopic(
            f"topic name {quoted(topic)} means a directory and cannot be used: choose another name"
        )
    return topic


def check_new_topic(topic: str) -> str:
    """The same for a topic that does not exist yet: people have to be able to see its name."""
    check_topic(topic)
    if not _VISIBLE.search(topic):
        raise InvalidTopic(
            f"topic name {quoted(topic)} consists only of spaces and invisible characters: use at "
            "least one visible character"
        )
    return topic


def topic_key(topic: str) -> str:
    """What two spellings of the same topic have in common."""
    return topic.casefold()


def topic_slug(topic: str) -> str:
    """A readable part of a file name: 1 to 40 of `a-z 0-9 _ -`. Different topics may share one."""
    plain = unicodedata.normalize("NFKD", topic.casefold()).encode("ascii", "ignore").decode()
    words = "".join(char if char.isalnum() or char == "_" else " " for char in plain.lower())
    return "-".join(words.split())[:SLUG_CHARS_MAX].rstrip("-") or "topic"


def check_name(name: str) -> str:
    """A text that may be published under (MQTT 5 §4.7.1, §4.7.3); else InvalidName."""
    _check_levels(name, "name", InvalidName)
    for char in "+#":
        if char in name:
            raise InvalidName(
                f"name {quoted(name)} contains {char!r}: wildcards belong in filters, "
                "not in publishes"
            )
    return name


def check_filter(filter: str) -> str:
    """A text that is a filter over names (MQTT 5 §4.7); else InvalidFilter.

    `$share/…` is the business of the door that speaks it: here it is a level like any other.
    """
    _check_levels(filter, "filter", InvalidFilter)
    if "+" not in filter and "#" not in filter:
        return filter
    levels = filter.split("/")
    for level in levels:
        for char in "+#":
            if char in level and level != char:
                raise InvalidFilter(
                    f"filter {quoted(filter)} has {char!r} inside the level {quoted(level)}: "
                    f"a wildcard must be a whole level, as in 'a/{char}'"
                )
    if "#" in levels[:-1]:
        raise InvalidFilter(
            f"filter {quoted(filter)} has a level after '#': '#' may only be the last level; "
            "use '+' for a single level in between"
        )
    return filter


def split_share(filter: str) -> tuple[str, str]:
    """Name and filter of a shared subscription `$share/{name}/{filter}`; else InvalidFilter.

    Any other filter is its own, with an empty name. Both come back checked (MQTT 5 §4.8.2).
    """
    if not filter.startswith(SHARE_PREFIX):
        return "", check_filter(filter)
    name, _, wanted = filter[len(SHARE_PREFIX) :].partition("/")
    if not name or "+" in name or "#" in name or not wanted:
        raise InvalidFilter(
            f"filter {quoted(filter)} is not a valid shared subscription: use '$share/', a name "
            "without wildcards, '/' and a filter, as in '$share/workers/jobs/#'"
        )
    return name, check_filter(wanted)


def check_consumer(name: str) -> str:
    """A text that may name a consumer, case-sensitive; else InvalidName."""
    _check_label(name, "consumer name", CONSUMER_CHARS_MAX, InvalidName)
    return name


def check_group(name: str) -> str:
    """A text that may name a group of readers, case-sensitive; else InvalidName."""
    _check_label(name, "group name", CONSUMER_CHARS_MAX, InvalidName)
    return name


def check_tenant(name: str) -> TenantId:
    """A text that may name a tenant; else InvalidName."""
    if (
        not isinstance(name, str)
        or len(name) > TENANT_CHARS_MAX
        or not TENANT.fullmatch(name)
        or name in FILE_NAMES
    ):
        raise InvalidName(
            f"{quoted(name)} is not a valid tenant name: use 1 to {TENANT_CHARS_MAX} lower-case "
            "letters, digits, '-' and '_', beginning with a letter or digit, not "
            f"{' or '.join(FILE_NAMES)}"
        )
    return TenantId(name)


def first_level(name: str) -> str:
    """The part of a name before its first '/'."""
    return name.partition("/")[0]


def matches(filter: str, name: str) -> bool:
    """Whether a checked filter matches a checked name.

    `#` also matches the level above it, and names that begin with '$' are hidden from filters
    that begin with a wildcard (MQTT 5 §4.7.1.2, §4.7.2).
    """
    if name.startswith("$") and filter.startswith(("+", "#")):
        return False
    wanted = filter.split("/")
    levels = name.split("/")
    for index, want in enumerate(wanted):
        if want == "#":
            return True
        if index == len(levels):
            return False
        if want != "+" and want != levels[index]:
            return False
    return len(wanted) == len(levels)


def overlaps(one: str, other: str) -> bool:
    """Whether some name matches both checked filters."""
    if _is_hidden(one, other) or _is_hidden(other, one):
        return False
    for left, right in zip_longest(one.split("/"), other.split("/")):
        if "#" in (left, right):
            return True
        if left is None or right is None:
            return False
        if left != right and "+" not in (left, right):
            return False
    return True


def covers(wide: str, narrow: str) -> bool:
    """Whether every name that the checked filter `narrow` matches is matched by `wide`."""
    if _is_hidden(wide, narrow):
        return False
    if wide == "+/#":  # every name has a level
        return True
    for left, right in zip_longest(wide.split("/"), narrow.split("/")):
        if left == "#":
            return True
        if left is None or right is None or right == "#":
            return False
        if left not in ("+", right):
            return False
    return True


def _is_hidden(filter: str, other: str) -> bool:
    """Whether `filter` begins with a wildcard and `other` matches only names with a '$'."""
    return filter.startswith(("+", "#")) and other.startswith("$")


def quoted(value: object) -> str:
    """A value as an error message shows it: recognisable, never long, never failing."""
    if isinstance(value, str | bytes | bytearray):
        if len(value) <= SHOWN_CHARS_MAX:
            return repr(value)
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:SHOWN_CHARS_MAX]!r}… ({len(value):,} {unit})"
    if isinstance(value, int) and value.bit_length() > SHOWN_BITS_MAX:
        return f"an integer of {value.bit_length():,} bits"
    if value is None or isinstance(value, int | float):
        return repr(value)
    return f"of type {type(value).__name__}"


def shown(value: object) -> str:
    """As `quoted`, with what lists and objects hold, cut short."""
    return quoted(value) if isinstance(value, str | bytes | int) else reprlib.repr(value)


def _check_label(text: str, what: str, chars_max: int, error: type[RefusedError]) -> None:
    """The rules that topics and consumers share: a short text without control characters."""
    _check_text(text, what, error)
    if len(text) > chars_max:
        raise error(
            f"{what} {quoted(text)} is too long: at most {chars_max} characters; shorten it"
        )
    for char in text:
        if unicodedata.category(char) == "Cc":
            raise error(
                f"{what} {quoted(text)} contains the control character U+{ord(char):04X}: "
                "use printable characters only"
            )
    _check_unicode(text, what, error)


def _check_levels(text: str, what: str, error: type[RefusedError]) -> None:
    """The rules that names and filters share (MQTT 5 §1.5.4, §4.7.3)."""
    _check_text(text, what, error)
    # Characters first: a text that is far too long is not encoded just to be refused.
    if len(text) > NAME_BYTES_MAX or _check_unicode(text, what, error) > NAME_BYTES_MAX:
        raise error(
            f"{what} {quoted(text)} is too long: at most {NAME_BYTES_MAX:,} bytes in UTF-8; "
            "move data into the payload or the headers"
        )
    if "\0" in text:
        raise error(
            f"{what} {quoted(text)} contains the character U+0000: MQTT forbids it; leave it out"
        )
    levels = text.count("/") + 1
    if levels > NAME_LEVELS_MAX:
        raise error(
            f"{what} {quoted(text)} has {levels:,} levels: at most {NAME_LEVELS_MAX}; use fewer '/'"
        )


def _check_text(text: str, what: str, error: type[RefusedError]) -> None:
    if not isinstance(text, str):
        raise error(f"{what} {quoted(text)} is not text: pass a str")
    if not text:
        raise error(f"{what} '' is empty: it needs at least one character; give it one")


def _check_unicode(text: str, what: str, error: type[RefusedError]) -> int:
    """The length in UTF-8 bytes; refuses lone surrogates, which have no UTF-8 form."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as failure:
        code = ord(text[failure.start])
        raise error(
            f"{what} {quoted(text)} contains the lone surrogate U+{code:04X}: "
            "it must be well-formed Unicode; decode the text as UTF-8 before passing it"
        ) from None
