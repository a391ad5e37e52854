"""Asking the handler of a route, and what a client is told if that fails."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from penstock.broker.queue.readers import Elsewhere
from penstock.doors.http.passing.seal import ELSEWHERE, SEAL
from penstock.doors.http.routing.errors import problem_of
from penstock.doors.http.routing.needs import check_needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.wire.messages import Answer, Request, Response, Streamed, Upgrade


def call(request: Request, route: Route) -> Answer | Coroutine[Any, Any, Answer] | None:
    """Ask the handler, if the one who asks may, and if this node can answer."""
    if route.needs is not None:
        check_needs(route.needs, request)
    readers = route.readers_for(request)
    if readers is None:
        return route.handler(request)
    readers.check()
    answer = route.handler(request)
    if answer is None or isinstance(answer, Response | Streamed | Upgrade):
        return answer
    return readers.serve(answer)


def needs_topic(request: Request) -> bool:
    """Does it ask for something of a topic that has to exist?"""
    route: Route | None = request.route
    return "topic" in request.params and (route is None or not route.creates_topic)


def reply_failure(request: Request, wrong: Exception) -> None:
    """Another node that passed the request on hears whether it has to ask elsewhere."""
    route: Route | None = request.route
    answer = route.fail(wrong) if route is not None else problem_of(wrong)
    if isinstance(wrong, Elsewhere) and (request.passed or SEAL in request.headers):
        answer = Response(503, headers=((ELSEWHERE, "yes"),))
    request.reply(answer)
