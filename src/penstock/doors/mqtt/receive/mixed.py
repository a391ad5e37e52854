"""Plain messages of many names, stored together: a client's chunk whose neighbours differ in name.

Only QoS 0 without properties is stored so, of names whose readers all take the bytes as they came,
in a topic where nothing waits; anything else goes its way one run after the other. Order is kept.
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.deliver.routes import MustWait, Route
from penstock.broker.publish.publisher import Publisher
from penstock.core.delivery.run import MixedRun
from penstock.doors.mqtt.encoding import MqttEncoding
from penstock.model.limits import NAME_LEVELS_MAX
from penstock.mqtt.scanner import Chunk, Item, PublishRun

if TYPE_CHECKING:
    from penstock.doors.mqtt.receive.publishing import Publishing

PLAIN_PUBLISH: Final = 0x30  # QoS 0, not retained: can be forwarded as it is
ROUTES_MAX: Final = 1_024  # that one client keeps at hand
ALONE: Final[list[PublishRun]] = []  # the neighbours of a run that has none


def plain_neighbours(items: list[Item], first: int) -> list[PublishRun]:
    """The consecutive plain runs from `first` on."""
    neighbours = []
    for at in range(first, len(items)):
        item = items[at]
        if not isinstance(item, PublishRun):
            break
        if item.first_byte != PLAIN_PUBLISH or item.property_bytes:
            break
        neighbours.append(item)
    return neighbours


class MixedPublishing:
    """Made for a client that sends neighbours of different names."""

    __slots__ = ("_edition", "_plain", "_publisher", "_publishing", "_routes")

    def __init__(
        self,
        publishing: Publishing,
        publisher: Publisher,
        plain: MqttEncoding,
    ) -> None:
        self._publishing = publishing
        self._publisher = publisher
        self._plain = plain
        self._routes: dict[bytes, Route | None] = {}  # None: of a name that goes its own way
        self._edition = -1  # of the router, when these were found

    def publish(self, chunk: Chunk, neighbours: list[PublishRun]) -> None:
        """Plain runs side by side; ProtocolViolation if one breaks a rule, after those before."""
        bytes_max = self._publisher.payload_bytes_max
        edition = self._publisher.router.edition
        if edition != self._edition or len(self._routes) > ROUTES_MAX:
            self._edition = edition
            self._routes.clear()
        together: list[PublishRun] = []
        routes: list[Route] = []
        for item in neighbours:
            name = item.name
            route = self._routes[name] if name in self._routes else self._find(name)
            if route is None or item.packet_bytes_max > bytes_max:
                self._store(chunk, together, routes)
                together, routes = [], []
                self._publishing.publish(chunk, item)
                continue
            if routes and route.topic_id != routes[0].topic_id:
                self._store(chunk, together, routes)
                together, routes = [], []
            together.append(item)
            routes.append(route)
        self._store(chunk, together, routes)

    def _find(self, name: bytes) -> Route | None:
        route: Route | None = None
        if name.count(b"/") < NAME_LEVELS_MAX:
            try:
                route = self._publisher.router.find(name.decode(), self._publishing.principal)
            except MustWait:
                return None  # on its own way it asks for its topic, or for another turn
            lanes = route.lanes
            if not route.is_single or (lanes and lanes[0].encoding is not self._plain):
                route = None
        self._routes[name] = route
        return route

    def _store(self, chunk: Chunk, together: list[PublishRun], routes: list[Route]) -> None:
        """Store runs of one topic with one append, then forward each."""
        if len(together) < 2 or not self._publisher.is_level(routes[0].topic):
            for item in together:
                self._publishing.publish(chunk, item)
            return
        start = together[0].start
        first, end = together[0].first_message, together[-1].end_message
        mixed = MixedRun(
            [route.name for route in routes],
            [item.end_message - item.first_message for item in together],
            chunk.data[start : together[-1].end],
            [at - start for at in chunk.payload_starts[first:end]],
            chunk.payload_lengths[first:end],
        )
        self._publishing.store_mixed(routes[0].topic, mixed)
        handed = 0
        data = chunk.data
        for at, route in enumerate(routes):
            if not route.lanes:
                continue
            item = together[at]
            packets = data[item.start : item.end]
            count = item.end_message - item.first_message
            for member in route.lanes[0].members:
                member.outbox.forward(route.name, count, packets)
                handed += count
        self._publisher.metrics.records_delivered += handed
