"""Which handler answers which method and path.

A pattern is a path whose levels are texts or `{parameters}`; a text wins over a parameter. Modules
add their routes once, before the door opens. What was found is remembered for the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import unquote

from penstock.broker.queue.readers import Readers, ReaderSlots
from penstock.doors.http.routing.errors import problem_of
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.wire.messages import Handler, HttpError, Request, Response

# The first level of paths below /v1 where most requests publish or read.
_DATA: Final = ("topics", "staged")
KEY_HEADERS: Final = frozenset((b"idempotency-key", b"idempotency-part"))
FOUND_MAX: Final = 4_096  # remembered paths; a full memory starts anew
FOUND_CHARS_MAX: Final = 512  # of one of them: anybody may ask for any path, also without a login

TopicOf = Callable[[Request], str]


def path_topic(request: Request) -> str:
    """The topic in the path."""
    return request.params["topic"]


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """What answers one method of one path."""

    method: str
    pattern: str
    handler: Handler
    is_open: bool = False  # answered without a login
    fail: Callable[[Exception], Response] = problem_of  # says what went wrong
    ends_with_client: bool = False  # given up when the client goes: it changes nothing
    facts: Facts | None = None  # for the OpenAPI document
    changes: bool = False  # although it is GET
    creates_topic: bool = False  # the one in its path, which need not exist
    administers: bool = False  # although its path is one of data
    needs: Needs | None = None  # of whoever asks; None only where it is answered without a login
    is_keyed: bool = False  # an idempotency key makes it one of readers
    readers: ReaderSlots | None = None  # where it has to be answered, if there are several nodes
    topic_of: TopicOf = path_topic  # what it is about
    # Found out once, because every request asks.
    is_safe: bool = field(init=False)  # it changes nothing (RFC 9110 §9.2.1)
    is_administrative: bool = field(init=False)  # it changes what others use: topics, users, …
    is_plain: bool = field(init=False)  # whoever was let in may ask, and any node answers at once

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_safe", self.method == "GET" and not self.changes)
        is_administrative = self._administers()
        object.__setattr__(self, "is_administrative", is_administrative)
        is_for_all = self.needs in (Needs.LOGIN, Needs.JUDGED) and self.readers is None
        object.__setattr__(self, "is_plain", is_for_all and not is_administrative)

    @property
    def is_of_readers(self) -> bool:
        """Is it about consumers, groups or the seed's queue, which one node has at a time?"""
        levels = self.pattern.split("/")[1:]
        is_of_seed = levels[0] in ("consumer", "producer") or self.pattern == "/size"
        return is_of_seed or "consumers" in levels or "groups" in levels

    def readers_for(self, request: Request) -> Readers | None:
        """Where a request has to be answered; None: on any node."""
        if self.readers is None:
            return None
        if self.is_keyed and KEY_HEADERS.isdisjoint(request.headers):
            return None
        return self.readers.of(self.topic_of(request))

    def _administers(self) -> bool:
        """Does it change what others use: topics, bindings, users, groups and the like?"""
        levels = self.pattern.split("/")[1:]
        if self.method == "GET":
            return False
        if levels[0] != "v1":
            return self.pattern == "/topics"  # the seed's other paths publish and read
        is_of_data = levels[1] in _DATA and not self.administers
        return not is_of_data or (levels[1] == "topics" and len(levels) == 3)


RouteRow = tuple[str, str, Handler, Facts]  # method, pattern: of a module's table of routes


@dataclass(slots=True)
class _Level:
    texts: dict[str, _Level] = field(default_factory=dict)
    parameter: _Level | None = None
    name: str = ""  # of the parameter
    routes: dict[str, Route] = field(default_factory=dict)  # by method


Found = tuple[dict[str, Route], dict[str, str]]  # routes by method, parameters


class Router:
    """All routes of a door."""

    def __init__(self) -> None:
        self.readers: ReaderSlots | None = None  # of routes that are added later
        self._root = _Level()
        self._found: dict[str, Found] = {}
        self._routes: list[Route] = []

    def add(self, route: Route) -> None:
        if self.readers is not None and (route.is_of_readers or route.is_keyed):
            route = replace(route, readers=self.readers)
        level = self._root
        for part in route.pattern.split("/")[1:]:
            if part.startswith("{"):
                name = part[1:-1]
                if level.parameter is None:
                    level.parameter, level.name = _Level(), name
                assert level.name == name, "one place in a path has one name"
                level = level.parameter
            else:
                level = level.texts.setdefault(part, _Level())
        assert route.is_open or route.needs, f"{route.pattern} does not say what it needs"
        assert route.method not in level.routes, f"{route.method} {route.pattern} is taken"
        level.routes[route.method] = route
        self._routes.append(route)

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and its parameters; HttpError 404 or 405."""
        found = self._found.get(path)
        if found is None:
            found = self._look(path)
            if len(path) <= FOUND_CHARS_MAX:
                if len(self._found) >= FOUND_MAX:
                    self._found.clear()
                self._found[path] = found
        routes, params = found
        route = routes.get(method)
        if route is None and method == "HEAD" and "GET" in routes and routes["GET"].is_safe:
            route = routes["GET"]
        if route is None:
            allowed = ", ".join(methods_of(routes))
            raise HttpError(
                405, f"{method} is not allowed on {path}: use {allowed}", (("Allow", allowed),)
            )
        return route, params

    def allowed(self, path: str) -> str:
        """The methods of a path; HttpError 404 if there is no such path."""
        return ", ".join(methods_of(self._look(path)[0]))

    def _look(self, path: str) -> Found:
        parts = path.split("/")[1:]
        params: dict[str, str] = {}
        level: _Level | None = self._walk(self._root, parts, 0, params)
        if level is None:
            raise HttpError(404, f"there is nothing at {path[:200]!r}")
        return level.routes, params

    def _walk(
        self, level: _Level, parts: list[str], at: int, params: dict[str, str]
    ) -> _Level | None:
        if at == len(parts):
            return level if level.routes else None
        text = level.texts.get(parts[at])
        if text is not None:
            found = self._walk(text, parts, at + 1, params)
            if found is not None:
                return found
        if level.parameter is None or not parts[at]:
            return None
        found = self._walk(level.parameter, parts, at + 1, params)
        if found is not None:
            try:
                params[level.name] = unquote(parts[at], errors="strict")
            except UnicodeDecodeError:
                raise HttpError(400, f"{parts[at]!r} in the path is not UTF-8") from None
        return found


def methods_of(routes: dict[str, Route]) -> list[str]:
    methods = set(routes) | {"OPTIONS"}
    if "GET" in routes and routes["GET"].is_safe:
        methods.add("HEAD")
    return sorted(methods)
