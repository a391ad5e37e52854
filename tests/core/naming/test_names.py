"""Which texts are topics, names, filters and consumers, and what do refusals say?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.naming.names import (
    SHOWN_CHARS_MAX,
    SLUG_CHARS_MAX,
    check_consumer,
    check_filter,
    check_name,
    check_new_topic,
    check_topic,
    covers,
    first_level,
    matches,
    overlaps,
    quoted,
    split_share,
    topic_key,
    topic_slug,
)
from penstock.model.errors import InvalidFilter, InvalidName, InvalidTopic, RefusedError
from penstock.model.limits import (
    CONSUMER_CHARS_MAX,
    NAME_BYTES_MAX,
    NAME_LEVELS_MAX,
    TOPIC_CHARS_MAX,
)

CHECKS: list[tuple[Callable[[str], str], type[RefusedError]]] = [
    (check_topic, InvalidTopic),
    (check_name, InvalidName),
    (check_filter, InvalidFilter),
    (check_consumer, InvalidName),
]


@pytest.mark.parametrize(
    "topic",
    ["a", "Sensors (EU)", "x" * TOPIC_CHARS_MAX, "...", "a.b", "a$", " ", "größe", "😀"],
    ids=quoted,
)
def test_topic_is_accepted_unchanged(topic: str) -> None:
    assert check_topic(topic) is topic


@pytest.mark.parametrize(
    ("topic", "rule"),
    [
        ("", "at least one character"),
        ("x" * (TOPIC_CHARS_MAX + 1), "at most 255 characters"),
        ("a/b", "'/'"),
        ("a+b", "'+'"),
        ("#", "'#'"),
        ("$SYS", "begins with '$'"),
        (".", "directory"),
        ("..", "directory"),
        ("a\nb", "U+000A"),
        ("a\0b", "U+0000"),
        ("a\x7f", "U+007F"),
        ("a\x85", "U+0085"),
        ("a\ud800", "lone surrogate U+D800"),
    ],
    ids=quoted,
)
def test_topic_is_refused_with_its_rule(topic: str, rule: str) -> None:
    with pytest.raises(InvalidTopic) as refusal:
        check_topic(topic)
    assert rule in str(refusal.value)


@pytest.mark.parametrize("topic", ["a", "a\u200b", "\u00e9", "😀", "…", "\u0301x"], ids=quoted)
def test_a_new_topic_with_a_visible_character_is_accepted(topic: str) -> None:
    assert check_new_topic(topic) is topic


@pytest.mark.parametrize(
    "topic",
    [" ", "\u00a0", "\u200b", "\u00ad\u200d", "\u2060\ufeff", "\u3164", "\u2800 ", "\U000e0041"],
    ids=quoted,
)
def test_a_new_topic_that_nobody_can_see_is_refused(topic: str) -> None:
    assert check_topic(topic) is topic  # one that exists stays usable
    with pytest.raises(InvalidTopic, match="at least one visible character"):
        check_new_topic(topic)


def test_spellings_of_one_topic_have_one_key() -> None:
    assert topic_key("Sensors") == topic_key("SENSORS") == topic_key("sensors")
    assert topic_key("STRASSE") == topic_key("straße")
    assert topic_key("a") != topic_key("b")


@pytest.mark.parametrize(
    ("topic", "slug"),
    [
        ("Sensors (EU)", "sensors-eu"),
        ("sensors", "sensors"),
        ("orders.dead", "orders-dead"),
        ("a_b", "a_b"),
        ("Größe", "grosse"),
        ("Ärger", "arger"),
        ("😀", "topic"),
        ("...", "topic"),
        (" - ", "topic"),
        ("x" * 255, "x" * SLUG_CHARS_MAX),
        ("x" * 39 + " yz", "x" * 39),
    ],
    ids=quoted,
)
def test_slug_is_a_readable_file_name(topic: str, slug: str) -> None:
    assert topic_slug(topic) == slug


@given(st.text(max_size=TOPIC_CHARS_MAX))
def test_slug_is_always_safe_in_a_path(topic: str) -> None:
    slug = topic_slug(topic)
    assert 1 <= len(slug) <= SLUG_CHARS_MAX
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
    assert not slug.startswith("-")
    assert not slug.endswith("-")


@pytest.mark.parametrize(
    "name",
    [
        *("a", "/", "a//b", "/a", "a/", "$SYS/x", "a b", "\n", "ü/ö"),
        "x" * NAME_BYTES_MAX,
        "ü" * (NAME_BYTES_MAX // 2),
        "/" * (NAME_LEVELS_MAX - 1),
    ],
    ids=quoted,
)
def test_name_is_accepted_unchanged_and_is_a_filter_too(name: str) -> None:
    assert check_name(name) is name
    assert check_filter(name) is name


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "at least one character"),
        ("a\0", "U+0000"),
        ("a\udfff/b", "lone surrogate U+DFFF"),
        ("x" * (NAME_BYTES_MAX + 1), "at most 65,535 bytes"),
        ("ü" * (NAME_BYTES_MAX // 2 + 1), "at most 65,535 bytes"),
        ("/" * NAME_LEVELS_MAX, "has 129 levels: at most 128"),
        ("/".join(["a"] * 10_000), "has 10,000 levels: at most 128"),
    ],
    ids=quoted,
)
def test_name_and_filter_share_the_rules_of_mqtt_texts(text: str, rule: str) -> None:
    for check, error in ((check_name, InvalidName), (check_filter, InvalidFilter)):
        with pytest.raises(error) as refusal:
            check(text)
        assert rule in str(refusal.value)


@pytest.mark.parametrize("name", ["+", "#", "a/+/b", "a/b#", "a+b"])
def test_name_with_a_wildcard_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="wildcards belong in filters"):
        check_name(name)


@pytest.mark.parametrize("filter", ["#", "+", "a/#", "+/+/#", "/+", "+/", "a/+/b", "$share/g/a/#"])
def test_filter_with_wildcards_in_their_own_levels_is_accepted(filter: str) -> None:
    assert check_filter(filter) is filter


def test_shared_filter_is_split_into_its_name_and_the_filter() -> None:
    assert split_share("$share/g/a/#") == ("g", "a/#")
    assert split_share("$share/g//") == ("g", "/")
    assert split_share("$share/g/" + "/".join("a" * NAME_LEVELS_MAX))[0] == "g"
    for plain in ("a/#", "$share", "$SYS/#", "$sharex/a"):
        assert split_share(plain) == ("", plain)


@pytest.mark.parametrize(
    "filter", ["$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/g#/a"]
)
def test_shared_filter_without_name_or_filter_is_refused(filter: str) -> None:
    with pytest.raises(InvalidFilter, match="not a valid shared subscription"):
        split_share(filter)
    with pytest.raises(InvalidFilter):
        split_share("$share/g/a/#/b")


@pytest.mark.parametrize(
    ("filter", "rule"),
    [
        ("a#", "'#' inside the level 'a#'"),
        ("a/b+/c", "'+' inside the level 'b+'"),
        ("##", "'#' inside the level '##'"),
        ("+#", "inside the level '+#'"),
        ("#/a", "'#' may only be the last level"),
        ("a/#/", "'#' may only be the last level"),
        ("#/#", "'#' may only be the last level"),
    ],
)
def test_filter_with_a_misplaced_wildcard_is_refused(filter: str, rule: str) -> None:
    with pytest.raises(InvalidFilter) as refusal:
        check_filter(filter)
    assert rule in str(refusal.value)


def test_consumer_name_keeps_its_case_and_any_printable_character() -> None:
    for name in ("a", "A/b+#", "x" * CONSUMER_CHARS_MAX, "größe"):
        assert check_consumer(name) is name


@pytest.mark.parametrize("name", ["", "x" * (CONSUMER_CHARS_MAX + 1), "a\tb", "\udc80"], ids=quoted)
def test_consumer_name_outside_the_rules_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match=r"^consumer name "):
        check_consumer(name)


@pytest.mark.parametrize(("check", "error"), CHECKS)
@pytest.mark.parametrize("value", [None, 7, 1.5, b"a", ["a"], 2**9_999], ids=quoted)
def test_what_is_not_text_is_refused(
    check: Callable[[str], str], error: type[RefusedError], value: object
) -> None:
    with pytest.raises(error, match="is not text: pass a str"):
        check(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(("check", "error"), CHECKS)
@given(text=st.text(alphabet=st.characters(exclude_categories=()), max_size=300))
def test_checked_text_is_utf8_and_a_refusal_is_short_and_printable(
    check: Callable[[str], str], error: type[RefusedError], text: str
) -> None:
    try:
        check(text)
    except error as refusal:
        message = str(refusal)
        assert ": " in message
        assert len(message) < 1_000
        message.encode()
        assert "\n" not in message
    else:
        assert check(text).encode().decode() == text


def test_long_value_is_shown_by_its_beginning_and_length() -> None:
    assert quoted("a" * SHOWN_CHARS_MAX) == repr("a" * SHOWN_CHARS_MAX)
    assert quoted("a" * 70_000) == repr("a" * SHOWN_CHARS_MAX) + "… (70,000 characters)"
    assert quoted(b"a" * 70_000) == repr(b"a" * SHOWN_CHARS_MAX) + "… (70,000 bytes)"
    assert quoted(2**9_999) == "an integer of 10,000 bits"
    assert quoted(-7) == "-7"
    assert quoted(object()) == "of type object"


def test_first_level_ends_at_the_first_slash() -> None:
    assert first_level("sensors/42/temp") == "sensors"
    assert first_level("sensors") == "sensors"
    assert first_level("/a") == ""


# The examples of MQTT 5 §4.7.1 and §4.7.2, and what follows from them.
@pytest.mark.parametrize(
    ("filter", "name", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("#", "a", True),
        ("#", "/", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+", "sport", True),
        ("+", "/finance", False),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+/tennis/#", "sport/tennis", True),
        ("+/tennis/#", "sport/golf", False),
        ("+/#", "sport", True),
        ("#", "$SYS/monitor", False),
        ("+/monitor", "$SYS/monitor", False),
        ("+/#", "$SYS", False),
        ("$SYS/#", "$SYS/monitor/a", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/+", "$SYS/monitor", True),
        ("a/#", "a/$b", True),
        ("a/+", "a/$b", True),
        ("ACCOUNTS", "Accounts", False),
        ("a", "a", True),
        ("a", "a/", False),
        ("a/", "a", False),
        ("a/b", "a", False),
        ("a", "a/b", False),
    ],
)
def test_filter_matches_names_as_mqtt_says(filter: str, name: str, expected: bool) -> None:
    assert matches(filter, name) is expected


def every_filter() -> list[str]:
    texts = ["/".join(way) for size in (1, 2, 3) for way in product("ab$+#", repeat=size)]
    return [text for text in texts if "#" not in text[:-1]]


def test_overlapping_and_covering_filters_are_those_whose_names_say_so() -> None:
    names = ["/".join(way) for size in (1, 2, 3, 4) for way in product("abc$", repeat=size)]
    matched = {
        filter: {name for name in names if matches(filter, name)} for filter in every_filter()
    }
    for one, mine in matched.items():
        for other, theirs in matched.items():
            assert overlaps(one, other) == bool(mine & theirs), (one, other)
            assert covers(one, other) == (theirs <= mine), (one, other)
