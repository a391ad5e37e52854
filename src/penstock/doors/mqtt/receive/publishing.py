"""What one client publishes: checked, handed to the publisher in runs, acknowledged in order.

An acknowledgement leaves once its message is durable, after all that were due before it. How much
may wait for that is bounded. What waits hangs on each other, oldest first, so a client that waits
for nothing has no container. Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.deliver.routes import MustWait, Route
from penstock.broker.publish.publisher import Publisher
from penstock.broker.session.session import Session
from penstock.broker.topic.topics import Topic
from penstock.core.access import Principal
from penstock.core.delivery.run import MixedRun, Run
from penstock.doors.mqtt.aliases import IncomingAliases
from penstock.doors.mqtt.answers import acknowledgement, reason_of
from penstock.doors.mqtt.encoding import MqttEncoding, stored_headers
from penstock.doors.mqtt.receive.mixed import PLAIN_PUBLISH, MixedPublishing
from penstock.model.limits import HEADERS_BYTES_MAX, NAME_LEVELS_MAX
from penstock.model.record import QOS_MASK, RETAIN
from penstock.mqtt.errors import ProtocolViolation
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.reasons import Reason
from penstock.mqtt.scanner import Chunk, PublishRun

if TYPE_CHECKING:
    from penstock.doors.mqtt.connection import Connection

PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
UNACKED_MAX: Final = 65_535  # publishes of one client that wait for their commit
RECEIVE_MAX: Final = 10_000  # the same for MQTT 5 clients, which are told and have to obey
_SUCCESS: Final = Reason.SUCCESS  # compiled code finds its own names sooner


class Receipt:
    """Implements the log's Waiter for messages that are acknowledged together."""

    __slots__ = ("_publishing", "error", "first_byte", "is_done", "next", "packet_ids", "reason")

    def __init__(self, first_byte: int, packet_ids: list[int], publishing: Publishing) -> None:
        self.first_byte = first_byte
        self.packet_ids = packet_ids
        self.reason = _SUCCESS  # what is said if there is no error
        self.is_done = False
        self.error: Exception | None = None
        self.next: Receipt | None = None  # the one that became due after it
        self._publishing = publishing

    @property
    def has_given_up(self) -> bool:
        return False

    def committed(self, offset: int) -> None:
        self.is_done = True
        self._publishing.send_receipts()

    def refused(self, error: Exception) -> None:
        self.is_done = True
        self.error = error
        self._publishing.send_receipts()


class Publishing:
    """Made for a connection when its client first publishes."""

    __slots__ = (
        "_aliases",
        "_congested",
        "_connection",
        "_first",
        "_last",
        "_mixed",
        "_opened_before",
        "_owner",
        "_plain",
        "_pubacks",
        "_publisher",
        "_route",
        "_route_edition",
        "_route_name",
        "_route_version",
        "_session",
        "_unacked",
        "meter",
        "stopped_at",
    )

    def __init__(
        self, connection: Connection, session: Session, publisher: Publisher, plain: MqttEncoding
    ) -> None:
        self._connection = connection
        self._session = session
        self._publisher = publisher
        self._plain = plain  # how the client's plainest messages are encoded
        self._aliases: IncomingAliases | None = None
        self._congested: Topic | None = None  # more waited for its commit than there should
        self._opened_before = set(session.opened)  # QoS 2 ids of earlier connections
        self._first: Receipt | None = None  # of the answers that are due
        self._last: Receipt | None = None
        self._unacked = 0  # packets without an answer
        self._pubacks = 0  # those of them that are messages of QoS 1
        self._mixed: MixedPublishing | None = None
        self._route: Route | None = None  # of the last message: most clients keep to one name
        self._route_name = b""  # its name, as it is sent
        # Of the router and of its placement, when it was found: asking `edition` would be a call.
        self._route_edition = self._route_version = -1
        self._owner = connection.principal.owner
        self.renew_meter()
        self.stopped_at: PublishRun | None = None  # the run that had to wait last

    def publish(self, chunk: Chunk, item: PublishRun) -> None:
        """Consecutive PUBLISH packets that are alike; ProtocolViolation if they break a rule.

        MustWait, and nothing is done, if they have to come again later: `stopped_at` is them.
        """
        session = self._session
        publisher = self._publisher
        run = self._run(chunk, item)
        run.publisher = session.client_id
        route, router = self._route, publisher.router
        if (
            route is None
            or route.name is not run.name  # the very text: see `_run`
            or router.forgotten != self._route_edition
            or router.placement.version != self._route_version
        ):
            try:
                route = router.find(run.name, self._connection.principal)
            except MustWait:
                self.stopped_at = item
                raise
            self._route = route
            self._route_name = run.name.encode()
            self._route_edition = router.forgotten
            self._route_version = router.placement.version
        if run.qos == 0:
            if publisher.publish(route, run, None, (), self._owner):
                self._hold(route.topic)
            return
        if self._connection.version == MQTT_5:
            self._check_receive_maximum(run.count)
        ids = chunk.packet_ids[item.first_id : item.first_id + run.count]
        receipt = self._receipt(PUBACK if run.qos == 1 else PUBREC, ids)
        if run.qos == 1:
            is_much = publisher.publish(route, run, receipt, (), self._owner)
        else:
            is_much = publisher.publish_once(
                route, run, session, packet_ids=ids, waiter=receipt, owner=self._owner
            )
        if is_much or self._unacked > UNACKED_MAX:
            self._hold(route.topic)

    def renew_meter(self) -> None:
        """Be measured by the quotas of now."""
        self.meter = self._publisher.quotas.meter(self._connection.principal.user)

    def measure(self, messages: int, size: int) -> None:
        """So much was published: the client is not read while its rate is above its quota."""
        assert self.meter is not None
        wait_s = self._publisher.quotas.measure(self.meter, messages, size)
        if wait_s > 0:
            self._connection.hold(wait_s)

    @property
    def principal(self) -> Principal:
        """Who publishes; another object when rules change."""
        return self._connection.principal

    def publish_plain(self, chunk: Chunk, neighbours: list[PublishRun]) -> None:
        """Runs of QoS 0 side by side, of different names; else as `publish` of each."""
        if self._mixed is None:
            self._mixed = MixedPublishing(self, self._publisher, self._plain)
        self._mixed.publish(chunk, neighbours)

    def store_mixed(self, topic: Topic, mixed: MixedRun) -> None:
        """Store plain messages of several names, of a topic that is level, with one append."""
        mixed.publisher = self._session.client_id
        if self._publisher.publish_mixed(topic, mixed):
            self._hold(topic)

    def _run(self, chunk: Chunk, item: PublishRun) -> Run:
        name = item.name
        alias = item.properties.topic_alias if item.property_bytes else None
        if alias is not None:
            if self._aliases is None:
                self._aliases = IncomingAliases()
            name = self._aliases.resolve(name, alias)
        first, end = item.first_message, item.end_message
        # Most names are too short for so many levels: then nothing is counted.
        if len(name) >= NAME_LEVELS_MAX and name.count(b"/") >= NAME_LEVELS_MAX:
            raise ProtocolViolation(
                Reason.TOPIC_NAME_INVALID, f"a name of more than {NAME_LEVELS_MAX} levels"
            )
        bytes_max = self._publisher.payload_bytes_max
        if item.packet_bytes_max > bytes_max and max(chunk.payload_lengths[first:end]) > bytes_max:
            raise ProtocolViolation(
                Reason.PACKET_TOO_LARGE, f"a message of more than {bytes_max} bytes"
            )
        start = item.start
        if end == first + 1:
            starts = [chunk.payload_starts[first] - start]
        else:
            starts = [at - start for at in chunk.payload_starts[first:end]]
        last = self._route
        run = Run(
            last.name if last is not None and name == self._route_name else name.decode(),
            chunk.data[start : item.end],
            starts,
            chunk.payload_lengths[first:end],
            item.first_byte >> 1 & QOS_MASK | (RETAIN if item.first_byte & 1 else 0),
        )
        if item.property_bytes:
            self._add_properties(run, item)
        elif item.first_byte == PLAIN_PUBLISH:
            run.wire = self._plain
        return run

    def _add_properties(self, run: Run, item: PublishRun) -> None:
        if len(item.property_bytes) > HEADERS_BYTES_MAX:
            raise ProtocolViolation(
                Reason.PACKET_TOO_LARGE, f"properties of more than {HEADERS_BYTES_MAX} bytes"
            )
        run.headers = stored_headers(item.properties)
        expiry_s = item.properties.message_expiry_interval
        if expiry_s is not None:
            run.until_us = self._publisher.clock.steady_us() + expiry_s * 1_000_000

    def _check_receive_maximum(self, count: int) -> None:
        """What the client has out: QoS 1 without PUBACK, QoS 2 whose PUBREL has not come.

        What an earlier connection left open does not count (MQTT 5 §4.9).
        """
        out = len(self._session.opened) - len(self._opened_before) + count
        out += self._pubacks
        if out > RECEIVE_MAX:
            raise ProtocolViolation(
                Reason.RECEIVE_MAXIMUM_EXCEEDED,
                f"more than {RECEIVE_MAX} messages without an acknowledgement",
                "MQTT-3.3.4-7",
            )

    def release(self, packet_ids: list[int]) -> None:
        """The client will not send these QoS 2 messages again."""
        opened = self._session.opened
        start = 0
        while start < len(packet_ids):  # neighbours that are alike are answered together
            is_open = packet_ids[start] in opened
            end = start + 1
            while end < len(packet_ids) and (packet_ids[end] in opened) == is_open:
                end += 1
            ids = packet_ids[start:end]
            receipt = self._receipt(PUBCOMP, ids)
            if not is_open:
                receipt.reason = Reason.PACKET_IDENTIFIER_NOT_FOUND
            elif self._opened_before:
                self._opened_before.difference_update(ids)
            self._publisher.release(self._session, ids, receipt)
            start = end

    # Answers

    def _receipt(self, first_byte: int, packet_ids: list[int]) -> Receipt:
        """An answer to be given when it is true, after all that were asked for before."""
        receipt = Receipt(first_byte, packet_ids, self)
        if self._last is None:
            self._first = receipt
        else:
            self._last.next = receipt
        self._last = receipt
        self._unacked += len(packet_ids)
        if first_byte == PUBACK:
            self._pubacks += len(packet_ids)
        return receipt

    def send_receipts(self) -> None:
        """Acknowledge what is durable, up to the first message that is not."""
        connection = self._connection
        receipt = self._first
        while receipt is not None and receipt.is_done and not connection.is_closed:
            self._first = receipt.next
            if receipt.next is None:
                self._last = None
            count = len(receipt.packet_ids)
            self._unacked -= count
            if receipt.first_byte == PUBACK:
                self._pubacks -= count
            if receipt.error is None:
                connection.put_acks(receipt.first_byte, receipt.packet_ids, receipt.reason)
            else:
                self._refuse(receipt, receipt.error)
            receipt = self._first

    def _refuse(self, receipt: Receipt, error: Exception) -> None:
        """Never ack what was not stored: MQTT 5 says why, before that only closing is left."""
        connection = self._connection
        if connection.version != MQTT_5 or receipt.first_byte == PUBCOMP:
            connection.leave()
            return
        reason, why = reason_of(error), str(error)
        for packet_id in receipt.packet_ids:
            connection.put_packet(acknowledgement(receipt.first_byte, packet_id, reason, why))

    # Too much at once

    def _hold(self, topic: Topic) -> None:
        self._congested = topic
        self._connection.hold(0.0)

    @property
    def is_overdue(self) -> bool:
        """Too many of the client's messages wait for their commit, or too much of everybody's."""
        if self._unacked > UNACKED_MAX:
            return True
        if self._congested is None:
            return False
        return self._congested.log.is_congested or self._publisher.is_congested
