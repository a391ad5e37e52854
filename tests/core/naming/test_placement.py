"""Does a name land in the topic that its bindings, its first level and `default` say?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.naming.names import first_level, matches, topic_key
from penstock.core.naming.placement import DEFAULT_TOPIC, SHOWN_BINDINGS_MAX, Binding, Placement
from penstock.model.errors import (
    InvalidFilter,
    InvalidTopic,
    RefusedError,
    TopicExists,
    TopicNotFound,
)


def test_name_without_binding_or_topic_lands_in_default() -> None:
    placement = Placement()
    assert placement.place("sensors/42/temp") == DEFAULT_TOPIC
    assert placement.place("/a") == DEFAULT_TOPIC
    assert placement.place("$SYS/load") == DEFAULT_TOPIC


def test_declared_topic_captures_its_name_and_everything_below() -> None:
    placement = Placement(["sensors"])
    assert placement.place("sensors") == "sensors"
    assert placement.place("sensors/42/temp") == "sensors"
    assert placement.place("sensors2/42") == DEFAULT_TOPIC
    assert placement.place("x/sensors") == DEFAULT_TOPIC


def test_letter_case_of_a_topic_does_not_matter() -> None:
    placement = Placement(["Sensors", "Straße"])
    assert placement.place("SENSORS/1") == placement.place("sensors/1") == topic_key("Sensors")
    assert placement.place("STRASSE/1") == topic_key("Straße")
    assert placement.topics == ("Sensors", "Straße")


def test_binding_goes_before_the_topic_of_the_first_level() -> None:
    placement = Placement(["sensors", "alarms"], [("sensors/+/alarm", "Alarms")])
    assert placement.place("sensors/42/alarm") == "alarms"
    assert placement.place("sensors/42/temp") == "sensors"


def test_first_matching_binding_decides_also_after_others_are_taken_back() -> None:
    placement = Placement(["a", "b", "c"], [("x/#", "a"), ("x/+", "b"), ("x/y", "c")])
    assert placement.place("x/y") == "a"
    placement.unbind("x/#")
    assert placement.place("x/y") == "b"
    placement.bind("x/#", "a")
    assert placement.place("x/y") == "b"
    assert [binding.filter for binding in placement.bindings] == ["x/+", "x/y", "x/#"]
    placement.unbind("x/+")
    placement.unbind("x/y")
    placement.unbind("x/#")
    assert placement.place("x/y") == DEFAULT_TOPIC
    assert not placement.bindings


def test_names_that_begin_with_a_dollar_escape_bindings_that_begin_with_a_wildcard() -> None:
    placement = Placement(["a", "b"], [("#", "a"), ("$SYS/#", "b")])
    assert placement.place("$SYS/load") == "b"
    assert placement.place("$other/load") == DEFAULT_TOPIC
    assert placement.place("other") == "a"


def test_binding_needs_a_declared_topic_and_a_filter() -> None:
    placement = Placement(["a"])
    with pytest.raises(TopicNotFound, match=r"'b' is not declared.*create it first"):
        placement.bind("x/#", "b")
    with pytest.raises(InvalidFilter):
        placement.bind("x/#/y", "a")
    with pytest.raises(InvalidTopic):
        placement.bind("x", "a/b")
    assert placement.bindings == ()


def test_filter_bound_to_another_topic_is_refused_naming_it() -> None:
    placement = Placement(["Alpha", "b"], [("x/#", "alpha")])
    before = placement.version
    with pytest.raises(RefusedError, match=r"'x/#' is bound to topic 'Alpha'.*unbind it"):
        placement.bind("x/#", "b")
    assert placement.place("x") == "alpha"
    assert placement.version == before


def test_equal_binding_again_changes_nothing() -> None:
    placement = Placement(["a"])
    assert placement.bind("x/#", "a")
    before = placement.version
    assert not placement.bind("x/#", "A")
    assert placement.version == before
    assert placement.bindings == (Binding("x/#", "a"),)


def test_unknown_binding_cannot_be_taken_back() -> None:
    placement = Placement(["a"], [("x/+", "a")])
    with pytest.raises(RefusedError, match="'x/#' is not bound"):
        placement.unbind("x/#")
    with pytest.raises(InvalidFilter):
        placement.unbind("x#")
    assert placement.place("x/y") == "a"


def test_topic_is_declared_once_whatever_the_case() -> None:
    placement = Placement()
    assert placement.add_topic("Sensors") == "sensors"
    with pytest.raises(TopicExists, match="'Sensors' already exists"):
        placement.add_topic("SENSORS")
    with pytest.raises(InvalidTopic):
        placement.add_topic("$SYS")
    assert placement.topics == ("Sensors",)


def test_topic_with_bindings_stays_until_they_are_taken_back() -> None:
    filters = [f"x/{number}" for number in range(SHOWN_BINDINGS_MAX + 2)]
    placement = Placement(["a", "b"], [(filter, "a") for filter in filters])
    placement.bind("other", "b")
    with pytest.raises(RefusedError, match=r"'x/0', 'x/1', 'x/2' and 2 more.*unbind"):
        placement.remove_topic("A")
    for filter in filters[1:]:
        placement.unbind(filter)
    with pytest.raises(RefusedError, match="bound to it by 'x/0': "):
        placement.remove_topic("a")
    placement.unbind("x/0")
    placement.remove_topic("A")
    assert placement.place("a/1") == DEFAULT_TOPIC
    with pytest.raises(TopicNotFound):
        placement.remove_topic("a")
    placement.add_topic("a")
    assert placement.place("a/1") == "a"


def test_version_grows_with_every_change_and_only_then() -> None:
    placement = Placement()
    seen = [placement.version]
    placement.add_topic("a")
    seen.append(placement.version)
    placement.bind("x/#", "a")
    seen.append(placement.version)
    placement.place("x/1")
    assert placement.version == seen[-1]
    placement.unbind("x/#")
    seen.append(placement.version)
    placement.remove_topic("a")
    seen.append(placement.version)
    assert seen == sorted(set(seen))


def test_topics_that_may_hold_what_a_filter_matches_are_named() -> None:
    placement = Placement(["sensors", "alarms"], [("sensors/+/alarm", "alarms")])
    assert placement.places("sensors/1/temp") == {"sensors"}
    assert placement.places("Sensors/1/temp") == {"sensors"}
    assert placement.places("sensors/#") == {"sensors", "alarms"}
    assert placement.places("sensors/+/alarm") == {"alarms"}
    assert placement.places("other/#") == {DEFAULT_TOPIC}
    assert placement.places("#") == {"sensors", "alarms", DEFAULT_TOPIC}
    assert Placement([DEFAULT_TOPIC]).places("+/x") == {DEFAULT_TOPIC}


TOPICS = ["a", "b", "c"]
LEVELS = ["a", "B", "x", "$s"]
FILTERS = st.lists(st.sampled_from([*LEVELS, "+"]), min_size=1, max_size=3).map("/".join)
FILTERS_WIDE = ["#", "+/#", "a/#", "B/+", "$s/#", "x/+/a"]
STEPS = st.tuples(st.sampled_from(["bind", "unbind"]), FILTERS, st.sampled_from(TOPICS))


@given(
    st.lists(STEPS, max_size=30),
    st.lists(st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3).map("/".join), min_size=1),
)
def test_placement_equals_a_walk_over_the_bindings_in_order(
    steps: list[tuple[str, str, str]], names: list[str]
) -> None:
    placement = Placement(TOPICS)
    model: dict[str, str] = {}
    for verb, filter, topic in steps:
        if verb == "bind" and filter not in model:
            placement.bind(filter, topic)
            model[filter] = topic
        elif verb == "unbind" and filter in model:
            placement.unbind(filter)
            del model[filter]
    assert placement.bindings == tuple(Binding(*item) for item in model.items())
    for name in names:
        first = first_level(name).casefold()
        fallback = first if first in TOPICS else DEFAULT_TOPIC
        bound = [topic for filter, topic in model.items() if matches(filter, name)]
        assert placement.place(name) == [*bound, fallback][0]
        assert placement.places(name) == {placement.place(name)}
        for filter in FILTERS_WIDE:
            if matches(filter, name):
                assert placement.place(name) in placement.places(filter)
