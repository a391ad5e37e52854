"""`/v1/roles`, `/v1/rules` and `/v1/access/check`: who may do what, while the broker runs.

Only admins ask. What the settings file declares is shown and cannot be changed here.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.access import KnownRole, KnownRule, Question, answer
from penstock.broker.engine import Engine
from penstock.core.access import check_role_name, parse_rule
from penstock.core.naming.names import quoted
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.errors import with_status
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import ACTION, NAME, TOPIC
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import check_query, read_body, read_number
from penstock.doors.http.v1.types import (
    Allowed,
    RoleIn,
    RoleList,
    RoleOut,
    RuleList,
    RuleOut,
    RulesIn,
)
from penstock.doors.http.wire.messages import HttpError, Request, Response, json_response
from penstock.model.errors import RefusedError

ROLES: Final = "/v1/roles"
ROLE: Final = ROLES + "/{role}"
RULES: Final = "/v1/rules"
RULE: Final = RULES + "/{rule_id}"
CHECK: Final = "/v1/access/check"
RULE_ID_END: Final = 1 << 62

_QUESTION: Final = (
    Field("user", "name of a user; empty: an anonymous client", is_required=True),
    Field("action", "what the user wants to do", ACTION, is_required=True),
    Field("name", "a name; a filter to subscribe to; a topic to manage", NAME, is_required=True),
    Field("topic", "topic that holds the name (default: the one that would store it)", TOPIC),
    Field("client_id", "MQTT client id, if rules contain %c"),
)


def add_routes(door: Endpoints) -> None:
    access = AccessDoor(door.engine)
    for method, path, handler, facts in (
        ("GET", ROLES, access.show_roles, Facts("list the roles with their rules", RoleList)),
        ("GET", ROLE, access.show_role, Facts("show a role", RoleOut)),
        (
            "PUT",
            ROLE,
            access.put_role,
            Facts(
                "add a role, or replace its rules; 409 if it is built in or in the settings file; "
                "with If-None-Match: * an existing role is 409",
                RoleOut,
                takes=RoleIn,
                statuses=(200, 201),
                errors=(409,),
            ),
        ),
        (
            "DELETE",
            ROLE,
            access.remove_role,
            Facts("remove a role, also from its users", statuses=(204,), errors=(409,)),
        ),
        ("GET", RULES, access.show_rules, Facts("list the rules, those of roles too", RuleList)),
        (
            "POST",
            RULES,
            access.add_rules,
            Facts(
                "add rules of a role, of a user or of everybody",
                RuleList,
                takes=RulesIn,
                statuses=(201,),
                errors=(404, 409),
            ),
        ),
        ("GET", RULE, access.show_rule, Facts("show a rule and whom it is for", RuleOut)),
        (
            "DELETE",
            RULE,
            access.remove_rule,
            Facts("remove a rule", statuses=(204,), errors=(409,)),
        ),
        (
            "GET",
            CHECK,
            access.check,
            Facts(
                "may a user do this, and which rule says so",
                Allowed,
                query=_QUESTION,
                errors=(404,),
            ),
        ),
    ):
        door.router.add(Route(method, path, handler, facts=facts, needs=Needs.ADMIN))


class AccessDoor:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._access = engine.access
        self._tenant = engine.tenant
        self._roles = engine.access.roles

    # Roles

    def show_roles(self, request: Request) -> Response:
        tenant = self._tenant
        return json_response(RoleList([_role(one) for one in self._roles.all(tenant)]))

    def show_role(self, request: Request) -> Response:
        return json_response(_role(self._known(request)))

    async def put_role(self, request: Request) -> Response:
        role = check_role_name(request.params["role"])
        rules = [parse_rule(text) for text in read_body(request, RoleIn).rules]
        tenant = self._tenant
        is_new = all(one.role.name != role for one in self._roles.all(tenant))
        must_be_new = request.header(b"if-none-match") == "*"
        try:
            if is_new or must_be_new:
                await self._roles.add(role, rules, tenant)
            else:
                await self._roles.replace(role, rules, tenant)
        except RefusedError as refused:
            raise with_status(refused, 409) from None
        return json_response(_role(self._roles.get(role, tenant)), 201 if is_new else 200)

    async def remove_role(self, request: Request) -> Response:
        name = self._known(request).role.name
        try:
            await self._roles.remove(name, self._tenant)
        except RefusedError as refused:
            raise with_status(refused, 409) from None
        return Response(204)

    def _known(self, request: Request) -> KnownRole:
        try:
            return self._roles.get(request.params["role"], self._tenant)
        except RefusedError as refused:
            raise with_status(refused, 404) from None

    # Rules

    def show_rules(self, request: Request) -> Response:
        found = self._roles.rules(self._tenant)
        return json_response(RuleList([_rule(one) for one in found]))

    async def add_rules(self, request: Request) -> Response:
        asked = read_body(request, RulesIn)
        rules = [parse_rule(text) for text in asked.rules]
        tenant = self._tenant
        try:
            if asked.role:
                self._roles.check(asked.role, tenant)
            if asked.user:
                self._access.user(asked.user, tenant)
        except RefusedError as refused:
            raise with_status(refused, 404) from None
        try:
            added = await self._roles.add_rules(
                rules, role=asked.role, user=asked.user, tenant=tenant
            )
        except RefusedError as refused:
            raise with_status(refused, 409) from None
        return json_response(RuleList([_rule(one) for one in added]), 201)

    async def remove_rule(self, request: Request) -> Response:
        rule_id = self._known_rule(request).rule_id
        try:
            await self._roles.remove_rule(rule_id, self._tenant)
        except RefusedError as refused:
            raise with_status(refused, 409) from None
        return Response(204)

    def show_rule(self, request: Request) -> Response:
        return json_response(_rule(self._known_rule(request)))

    def _known_rule(self, request: Request) -> KnownRule:
        text = request.params["rule_id"]
        rule_id = read_number(text, RULE_ID_END)
        for one in self._roles.rules(self._tenant):
            if one.rule_id == rule_id:
                return one
        raise HttpError(404, f"there is no rule {quoted(text)}: see `penstock rule list`")

    # Questions

    def check(self, request: Request) -> Response:
        query = check_query(request, *(field.name for field in _QUESTION))
        for field in _QUESTION:
            if field.is_required and field.name not in query:
                raise HttpError(400, f"query field {field.name!r} is missing: {field.says}")
        question = Question(**query)
        tenant = self._tenant
        if question.user:
            try:
                self._access.user(question.user, tenant)
            except RefusedError as refused:
                raise with_status(refused, 404) from None
        found = answer(self._access, self._engine.topics.placement, tenant, question)
        rule = None if found.rule is None else str(found.rule)
        return json_response(Allowed(found.is_allowed, rule, found.source))


def _role(one: KnownRole) -> RoleOut:
    return RoleOut(one.role.name, one.kind, [str(rule) for rule in one.role.rules])


def _rule(one: KnownRule) -> RuleOut:
    return RuleOut(one.rule_id, str(one.rule), one.role, one.user)
