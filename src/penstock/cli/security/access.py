"""`penstock role`, `penstock rule` and `penstock access`: who may do what.

What the settings file declares is shown while its broker runs, or with --config, and is changed
only there.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from penstock.broker.access import DECLARED, Question
from penstock.cli.arguments import whole_number
from penstock.cli.output import EXIT_DONE, EXIT_REFUSED, show_facts, show_json, show_table
from penstock.cli.remote import add_remote, running_broker
from penstock.cli.security.accounts import add_config, closed_directory
from penstock.cli.security.rights import BrokerRights, DirectoryRights, OneRule, Rights
from penstock.core.access import ACTIONS

_RULE: Final = (
    "a rule in quotes: allow or deny, actions with commas between them, and a filter over names or "
    "topic:NAME, as in 'allow publish sensors/%%u/#'"
)


def add_commands(commands: Any) -> None:
    _add_role(commands.add_parser("role"))
    _add_rule(commands.add_parser("rule"))
    _add_access(commands.add_parser("access"))


def _add_role(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    add = actions.add_parser(
        "add",
        help="add a role: a named set of rules",
        description="Add a role: a named set of rules. Give it to users with `penstock user role`. "
        "Rules say what is allowed; deny wins, and what no rule allows is denied. %u is the user, "
        "%c the client id and %t the tenant, each a whole level.",
        epilog="example: penstock role add sensor 'allow publish sensors/%u/#' "
        "'allow subscribe,receive commands/%u/#'",
    )
    add.set_defaults(run=add_role)
    remove = actions.add_parser("remove", help="remove a role, also from the users who have it")
    remove.set_defaults(run=remove_role)
    listing = actions.add_parser("list", help="list all roles, the built-in ones first")
    listing.set_defaults(run=list_roles)
    show = actions.add_parser("show", help="show the rules of a role")
    show.set_defaults(run=show_role)
    for action in (add, remove, show):
        action.add_argument("role", metavar="NAME", help="name of the role (case-sensitive)")
    add.add_argument("rules", metavar="RULE", nargs="*", help=_RULE)
    for action in (add, remove, listing, show):
        add_remote(action)
        add_config(action)


def _add_rule(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    add = actions.add_parser(
        "add",
        help="add rules for a role, a user or everybody",
        epilog="example: penstock rule add 'deny receive,read hr/#' --user bob",
    )
    add.add_argument("rules", metavar="RULE", nargs="+", help=_RULE)
    owner = add.add_mutually_exclusive_group()
    owner.add_argument("--role", default="", help="for everybody who has this role")
    owner.add_argument("--user", default="", help="for this user (default: for everybody)")
    add.set_defaults(run=add_rules)
    remove = actions.add_parser("remove", help="remove a rule")
    remove.set_defaults(run=remove_rule)
    show = actions.add_parser("show", help="show a rule and whom it is for")
    show.set_defaults(run=show_rule)
    for action in (remove, show):
        action.add_argument(
            "rule_id", metavar="ID", type=whole_number, help="number in `penstock rule list`"
        )
    listing = actions.add_parser("list", help="list all rules that are not built in")
    listing.set_defaults(run=list_rules)
    for action in (add, remove, listing, show):
        add_remote(action)
        add_config(action)


def _add_access(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="say whether a user may do something, and which rule decides",
        description="Say whether a user may do something, which rule decides, and what it belongs "
        "to. The exit code is 0 if it is allowed and 1 if it is denied.",
        epilog="example: penstock access check bob publish sensors/bob/temp",
    )
    check.add_argument("user", metavar="USER", help="name of the user; '' is an anonymous client")
    check.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    check.add_argument(
        "name", metavar="NAME", help="a name; with subscribe a filter, with manage a topic"
    )
    check.add_argument(
        "--topic", default="", help="topic that holds the name (default: the one that stores it)"
    )
    check.add_argument("--client", metavar="ID", default="", help="client id, if rules contain %%c")
    check.set_defaults(run=check_access)
    add_remote(check)
    add_config(check)


def add_role(options: argparse.Namespace) -> None:
    _rights(options, create=True).add_role(options.role, options.rules)
    if options.json:
        show_json({"added": options.role})
    else:
        print(f"added role {options.role}")


def remove_role(options: argparse.Namespace) -> None:
    _rights(options).remove_role(options.role)
    if options.json:
        show_json({"removed": options.role})
    else:
        print(f"removed role {options.role}")


def list_roles(options: argparse.Namespace) -> None:
    roles = _rights(options).roles()
    if options.json:
        show_json([one._asdict() for one in roles])
    else:
        show_table(("role", "kind", "rules"), [(*one[:2], len(one.rules)) for one in roles])


def show_role(options: argparse.Namespace) -> None:
    found = _rights(options).role(options.role)
    if options.json:
        show_json(found._asdict())
        return
    show_facts([("role", found.role), ("kind", found.kind)])
    show_facts(("rule", rule) for rule in found.rules)


def add_rules(options: argparse.Namespace) -> None:
    added = _rights(options, create=True).add_rules(options.rules, options.role, options.user)
    if options.json:
        show_json([_shown(one) for one in added])
        return
    for one in added:
        print(f"added rule {one.rule_id} for {_owner(one)}: {one.rule}")


def remove_rule(options: argparse.Namespace) -> None:
    _rights(options).remove_rule(options.rule_id)
    if options.json:
        show_json({"removed": options.rule_id})
    else:
        print(f"removed rule {options.rule_id}")


def list_rules(options: argparse.Namespace) -> None:
    rules = _rights(options).rules()
    if options.json:
        show_json([_shown(one) for one in rules])
    elif rules:
        rows = [(_shown_id(one), _owner(one), one.rule) for one in rules]
        show_table(("id", "for", "rule"), rows)
    else:
        print("no rules yet: add one with `penstock rule add RULE`, or a role with them")


def show_rule(options: argparse.Namespace) -> None:
    found = _rights(options).rule(options.rule_id)
    if options.json:
        show_json(_shown(found))
    else:
        show_facts([("id", str(found.rule_id)), ("for", _owner(found)), ("rule", found.rule)])


def check_access(options: argparse.Namespace) -> int:
    question = Question(options.user, options.action, options.name, options.topic, options.client)
    found = _rights(options).check(question)
    if options.json:
        show_json({"allowed": found.is_allowed, "rule": found.rule, "source": found.source})
    else:
        verdict = "allowed" if found.is_allowed else "denied"
        by = f" by {found.source}: {found.rule}" if found.rule else ": no rule allows it"
        print(verdict + by)
    return EXIT_DONE if found.is_allowed else EXIT_REFUSED


def _owner(one: OneRule) -> str:
    if one.role:
        return f"role {one.role}"
    return f"user {one.user}" if one.user else "everybody"


def _shown_id(one: OneRule) -> str:
    return "in settings" if one.rule_id == DECLARED else str(one.rule_id)


def _shown(one: OneRule) -> dict[str, Any]:
    return {"id": one.rule_id, "rule": one.rule, "role": one.role, "user": one.user}


def _rights(options: argparse.Namespace, *, create: bool = False) -> Rights:
    broker = running_broker(options)
    if broker is not None:
        return BrokerRights(broker)
    return DirectoryRights(closed_directory(options, create=create))
