"""Do rules say what they look like, and does the compiled form decide as the plain model does?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access import (
    ACTIONS,
    ADMIN,
    BUILT_IN,
    CLIENT,
    MANAGE,
    PUBLISH,
    READ,
    READER,
    RECEIVE,
    SUBSCRIBE,
    Grants,
    Principal,
    Rule,
    RuleSet,
    authorise,
    check_new_user,
    check_role_name,
    condense,
    decide,
    may_read_some,
    parse_rule,
)
from penstock.model.errors import InvalidName, RefusedError
from penstock.model.record import DEFAULT_TENANT, TenantId
from tests.core.access.access_model import naive_decision

TEXTS = (
    "allow publish sensors/%u/#",
    "deny receive hr/#",
    "allow read,manage topic:orders",
    "allow publish,subscribe,receive,read,manage #",
    "deny publish %t/%c/+/a b",
)


def principal(*rules: str, user: str = "bob", client_id: str = "c1", **more: str) -> Principal:
    grants = Grants([RuleSet("role test", [parse_rule(one) for one in rules])])
    found = Principal(TenantId(more.get("tenant", DEFAULT_TENANT)), user, grants)
    return found.for_client(client_id)


def may(who: Principal, action: str, name: str, topic: str = "") -> bool:
    return authorise(who, action, name, topic)


@pytest.mark.parametrize("text", TEXTS)
def test_a_rule_is_printed_as_it_was_written(text: str) -> None:
    assert str(parse_rule(text)) == text


def test_actions_may_come_in_any_order_and_twice() -> None:
    rule = parse_rule("  allow  read,publish,read   a/b ")
    assert rule == Rule(True, (PUBLISH, READ), "a/b", "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "incomplete"),
        ("allow publish", "incomplete"),
        ("permit publish a", "begins with 'permit': begin with 'allow' or 'deny'"),
        ("Allow publish a", "begins with 'Allow'"),
        ("allow write a", "the action 'write', which does not exist: use publish, subscribe"),
        ("allow publish, read a", "the action ''"),
        ("allow publish a/#/b", "'#' may only be the last level"),
        ("allow publish a+", "must be a whole level"),
        ("allow publish a/x%u", "'%u' inside the level 'x%u': a placeholder must be a whole"),
        ("allow publish a/%uu", "must be a whole level"),
        ("allow read topic:a/b", "contains '/'"),
        ("allow read topic:", "is empty"),
        ("allow read " + "a" * 5000, "at most 4,096 characters"),
    ],
)
def test_a_rule_that_is_wrong_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(RefusedError) as refused:
        parse_rule(text)
    assert problem in str(refused.value)


def test_deny_wins_whatever_the_order_and_nothing_said_is_denied() -> None:
    for rules in (
        ("allow publish a/#", "deny publish a/secret/#"),
        ("deny publish a/secret/#", "allow publish a/#"),
    ):
        bob = principal(*rules)
        assert may(bob, PUBLISH, "a/b")
        assert not may(bob, PUBLISH, "a/secret/b")
        assert not may(bob, PUBLISH, "a/secret")
        assert not may(bob, PUBLISH, "b")
        assert not may(bob, READ, "a/b")
    assert not may(principal(), PUBLISH, "a")


def test_a_deny_rule_of_another_role_wins_over_an_admin() -> None:
    sets = [RuleSet.of_role(BUILT_IN[ADMIN]), RuleSet("everybody", [parse_rule("deny read hr/#")])]
    alice = Principal(DEFAULT_TENANT, "alice", Grants(sets))
    assert may(alice, READ, "a") and may(alice, READ, "$x/a")
    assert not may(alice, READ, "hr/pay")
    decision = decide(alice, READ, "hr/pay", "")
    assert (str(decision.rule), decision.source) == ("deny read hr/#", "everybody")


@pytest.mark.parametrize("value", ["", "+", "#", "a/b", "/", "a/#", "x+", "bob/#"])
@pytest.mark.parametrize("place", ["user", "client_id", "tenant"])
def test_a_value_with_wildcards_or_levels_never_widens_a_rule(place: str, value: str) -> None:
    letter = {"user": "%u", "client_id": "%c", "tenant": "%t"}[place]
    rules = [f"allow publish,subscribe,receive d/{letter}/#", f"allow publish {letter}"]
    bob = principal(*rules, **{place: value})
    for name in ("d/bob/x", "d//x", "d/a/b", "d", "a", "+", "d/a/b/x", "", "a/b"):
        if name and "+" not in name:
            assert not may(bob, PUBLISH, name)
            assert not may(bob, RECEIVE, name)
    for filter in ("d/+/#", "d/#", "#", "d/+", "d/bob/#", "d/a/b/#", "+/#", "d//#"):
        assert not may(bob, SUBSCRIBE, filter)


def test_a_placeholder_is_the_value_of_whoever_asks() -> None:
    bob = principal("allow publish %t/%u/%c/x")
    assert may(bob, PUBLISH, "default/bob/c1/x")
    assert not may(bob, PUBLISH, "default/eve/c1/x")
    assert not may(bob, PUBLISH, "default/bob/c2/x")


def test_a_principal_of_a_connection_is_its_own_only_where_rules_mention_the_client() -> None:
    plain = Principal(DEFAULT_TENANT, "bob", Grants([RuleSet.of_role(BUILT_IN[CLIENT])]))
    assert plain.for_client("c1") is plain
    plain.grants = Grants([RuleSet("role a", [parse_rule("allow publish d/%c")])])
    own = plain.for_client("c1")
    assert own is not plain and own.is_same_user(plain)
    assert own.for_client("c1") is own
    assert may(own, PUBLISH, "d/c1") and not may(plain, PUBLISH, "d/c1")
    plain.grants = Grants([])
    assert not may(own, PUBLISH, "d/c1")


@pytest.mark.parametrize(
    ("filter", "is_allowed"),
    [
        ("a/#", True),
        ("a/b", True),
        ("a/+/c", True),
        ("a", True),
        ("#", False),
        ("+/b", False),
        ("b", False),
        ("a/secret/x", False),
        ("a/secret/#", False),
        ("a/secret", False),
        ("a/+/#", True),  # overlaps what is denied: single messages are judged by `receive`
        ("$SYS/#", False),
    ],
)
def test_a_subscription_is_allowed_if_a_rule_covers_it_and_none_denies_all_of_it(
    filter: str, is_allowed: bool
) -> None:
    bob = principal("allow subscribe a/#", "deny subscribe a/secret/#")
    assert may(bob, SUBSCRIBE, filter) is is_allowed


def test_a_leading_wildcard_matches_no_name_that_begins_with_a_dollar_sign() -> None:
    bob = principal("allow publish,read #", "allow read $SYS/#")
    assert not may(bob, PUBLISH, "$x/a") and not may(bob, READ, "$x")
    assert may(bob, READ, "$SYS/uptime")
    dollar = principal("allow publish %u/#", user="$x")
    assert may(dollar, PUBLISH, "$x/a") and not may(dollar, PUBLISH, "$y/a")


def test_a_rule_about_a_topic_holds_for_the_names_in_it_and_for_the_topic() -> None:
    bob = principal("allow manage,read topic:Orders", "deny read orders/secret")
    assert may(bob, READ, "any/name", "orders") and not may(bob, READ, "orders/a", "default")
    assert not may(bob, READ, "orders/secret", "orders")
    assert may(bob, MANAGE, "Orders", "orders") and not may(bob, MANAGE, "other", "other")


@pytest.mark.parametrize(
    ("rules", "may_read"),
    [
        ((), False),
        (("allow publish #",), False),
        (("allow read a/+",), True),
        (("allow read topic:orders",), True),
        (("allow read topic:other",), False),
        (("allow read #", "deny read topic:orders"), False),
        (("allow read #", "deny read a/#"), True),
    ],
)
def test_a_topic_may_be_asked_for_if_something_in_it_may_be_readable(
    rules: tuple[str, ...], may_read: bool
) -> None:
    assert may_read_some(principal(*rules), "orders") is may_read


def test_the_built_in_roles() -> None:
    def of(role: str) -> Principal:
        return Principal(DEFAULT_TENANT, "x", Grants([RuleSet.of_role(BUILT_IN[role])]))

    assert [action for action in ACTIONS if may(of(ADMIN), action, "a")] == list(ACTIONS)
    four = [PUBLISH, SUBSCRIBE, RECEIVE, READ]
    assert [action for action in ACTIONS if may(of(CLIENT), action, "a")] == four
    assert [action for action in ACTIONS if may(of(READER), action, "a")] == four[1:]
    for role in (CLIENT, READER):
        assert may(of(role), SUBSCRIBE, "$SYS/#") and not may(of(role), READ, "$audit")
    assert may(of(ADMIN), READ, "$audit")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a" * 65, "a,b"])
def test_texts_that_name_no_role(name: str) -> None:
    with pytest.raises(InvalidName, match="role name"):
        check_role_name(name)


def test_new_users_have_no_slash_in_their_name() -> None:
    assert check_new_user("bob") == "bob"
    with pytest.raises(InvalidName, match="separates tenant and user"):
        check_new_user("acme/bob")


LEVELS = st.sampled_from(["a", "b", "bob", "c1", "default", "", "$x", "$SYS"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
RULE_LEVELS = st.one_of(LEVELS, st.sampled_from(["+", "%u", "%c", "%t"]))


@st.composite
def filters(draw: st.DrawFn, levels: st.SearchStrategy[str]) -> str:
    chosen = draw(st.lists(levels, min_size=0, max_size=4))
    if draw(st.booleans()) or not chosen:
        chosen.append("#")
    return "/".join(chosen) or "+"


RULES = st.builds(
    lambda allows, actions, filter, topic: Rule(
        allows,
        tuple(action for action in ACTIONS if action in actions),
        "" if topic else filter,
        topic,
    ),
    st.booleans(),
    st.sets(st.sampled_from(ACTIONS), min_size=1),
    filters(RULE_LEVELS),
    st.sampled_from(["", "", "", "Orders", "a"]),
)
VALUES = st.sampled_from(["bob", "c1", "a", "$x", "+", "#", "a/b", "", "$SYS"])


@given(
    roles=st.lists(st.lists(RULES, max_size=6), max_size=3),
    user=VALUES,
    client_id=VALUES,
    name=NAMES,
    filter=filters(st.one_of(LEVELS, st.just("+"))),
    topic=st.sampled_from(["", "orders", "a"]),
)
def test_compiled_rules_decide_as_the_plain_model(
    roles: list[list[Rule]], user: str, client_id: str, name: str, filter: str, topic: str
) -> None:
    sets = [RuleSet(f"role {at}", rules) for at, rules in enumerate(roles)]
    grants = Grants(sets, condense(sets))
    who = Principal(DEFAULT_TENANT, user, grants).for_client(client_id)
    everything = [rule for rules in roles for rule in rules]
    for action in ACTIONS:
        asked = filter if action == SUBSCRIBE else name
        expected = naive_decision(everything, who, action, asked, topic)
        assert authorise(who, action, asked, topic) is expected
        decision = decide(who, action, asked, topic)
        assert decision.is_allowed is expected
        assert decision.rule is None or decision.rule in everything
