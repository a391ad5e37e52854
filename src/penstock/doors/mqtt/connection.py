"""One MQTT connection: bytes in, runs to the exchange; messages and acknowledgements out.

Acknowledgements leave in the order the messages arrived, each after its message is durable. What
waits to be sent is bounded: beyond it messages of QoS 0 are dropped and counted, and the session
lags behind in the log for the others. Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.broker.exchange import Exchange
from penstock.broker.runs import Encoding, Run
from penstock.broker.sessions import Session
from penstock.broker.topics import Topic
from penstock.core.access import NOBODY, Principal
from penstock.doors.mqtt.aliases import IncomingAliases, OutgoingAliases
from penstock.doors.mqtt.encoding import Encodings, MqttEncoding, packets_within
from penstock.doors.mqtt.incoming import published_run
from penstock.doors.mqtt.receipts import Receipt, Receipts
from penstock.doors.wired import Link
from penstock.model.errors import NotAuthorized
from penstock.model.limits import KIB, MIB
from penstock.mqtt.decode import decode_packet
from penstock.mqtt.encode import encode_within
from penstock.mqtt.errors import ProtocolViolation, protocol_error
from penstock.mqtt.handshake import answer_version
from penstock.mqtt.intake import Intake
from penstock.mqtt.kinds import MQTT_5, UNKNOWN_VERSION, Role
from penstock.mqtt.packets import Connack, Disconnect, Packet, Puback, Pubrec
from penstock.mqtt.reasons import Reason
from penstock.mqtt.runs import EncodedRun, encode_acks, put_packet_ids
from penstock.mqtt.scanner import AckRun, Chunk, PublishRun
from penstock.mqtt.state import Event, State, next_state

OUT_BYTES_MAX: Final = 8 * MIB  # waiting to be sent to one client; then QoS 0 is dropped
OUT_BYTES_ROOM: Final = 1 * MIB  # above it nothing is sent that can come from the log later
UNACKED_MAX: Final = 65_535  # publishes of one client that wait for their commit
EARLY_BYTES_MAX: Final = 64 * KIB  # read ahead from a client that is still being let in
PACKET_BYTES_MAX: Final = 16 * MIB + 256 * KIB  # payload, name and properties

_CONNECT: Final = 0x10
_PUBACK: Final = 0x40
_PUBREC: Final = 0x50
_PUBREL: Final = 0x62
_PUBCOMP: Final = 0x70
_DUP: Final = 0x08
_CONNECTED: Final = State.CONNECTED
_WAIT_CONNACK: Final = State.WAIT_CONNACK
_PLAIN_PUBLISH: Final = 0x30  # QoS 0, not retained: can be forwarded as it is


class Host(Protocol):
    """The door, as its connections see it."""

    exchange: Exchange
    encodings: Encodings
    tick: int  # seconds, coarse

    def handle(self, connection: Connection, packet: Packet) -> None:
        """A packet that is no PUBLISH and no plain acknowledgement."""
        ...

    def mark_dirty(self, connection: Connection) -> None:
        """Call `flush` at the end of this tick."""
        ...

    def hold(self, connection: Connection) -> None:
        """Too much waits to be written: stop reading from this client for a moment."""
        ...

    def forget(self, connection: Connection) -> None: ...


class Connection:
    """Implements the broker's Outbox."""

    __slots__ = (
        "_aliases_in",
        "_aliases_out",
        "_congested",
        "_early",
        "_exchange",
        "_host",
        "_intake",
        "_link",
        "_out",
        "_out_bytes",
        "_plain",
        "_receipts",
        "_rest",
        "is_closed",
        "is_dirty",
        "keep_alive_s",
        "last_seen",
        "packet_bytes_max",
        "principal",
        "session",
        "state",
        "version",
        "wants_reasons",
    )

    def __init__(self, host: Host, link: Link) -> None:
        self._host = host
        self._exchange = host.exchange  # at hand: every message asks for it
        self._link = link
        self._intake = Intake(UNKNOWN_VERSION, PACKET_BYTES_MAX)
        self._early: list[bytes] = []  # came before the CONNACK was sent
        self._out: list[bytes] = []
        self._rest: memoryview | None = None  # of a write the socket did not take whole
        self._out_bytes = 0
        self._receipts: Receipts | None = None  # while an answer is due
        self._congested: Topic | None = None  # more waited for its commit than there should
        self._plain: MqttEncoding | None = None
        self._aliases_in: IncomingAliases | None = None  # made for those who use them
        self._aliases_out: OutgoingAliases | None = None
        self.state = State.WAIT_CONNECT
        self.version = UNKNOWN_VERSION
        self.session: Session | None = None
        self.principal: Principal = NOBODY  # until it is let in as somebody
        self.packet_bytes_max = PACKET_BYTES_MAX  # what the client takes
        self.wants_reasons = True  # texts beside reason codes [MQTT-3.1.2-29]
        self.keep_alive_s = 0
        self.last_seen = host.tick
        self.is_closed = False
        self.is_dirty = False

    # Bytes in

    def receive(self, data: bytes) -> None:
        """Bytes from the client; a violation ends the connection with its reason."""
        if self.session is not None:  # until then only the connect timeout counts
            self.last_seen = self._host.tick
        if self.state is _WAIT_CONNACK:
            self._keep_early(data)
            return
        try:
            self._take(self._intake.feed(data))
        except ProtocolViolation as violation:
            self.end(violation.reason)

    def _take(self, chunk: Chunk) -> None:
        for item in chunk.items:
            if self.is_closed:
                return
            if isinstance(item, PublishRun):
                self._publish(chunk, item)
            elif isinstance(item, AckRun):
                self._acks(chunk, item)
            else:
                body = chunk.data[item.body : item.end]
                self._host.handle(self, self._decode(item.first_byte, body))
        if chunk.violation is not None:
            raise chunk.violation

    def _decode(self, first_byte: int, body: bytes) -> Packet:
        """The packet; a CONNECT that cannot be accepted is answered, where its sender reads it."""
        if first_byte == _CONNECT and self.state != State.WAIT_CONNECT:
            raise protocol_error("a second CONNECT", "MQTT-3.1.0-2")
        try:
            return decode_packet(first_byte, body, self.version)
        except ProtocolViolation as violation:
            if self.state == State.WAIT_CONNECT:
                self.version = answer_version(body)
                if self.version != UNKNOWN_VERSION:
                    self.put_packet(Connack(reason=violation.reason))
                    self.flush()
            raise

    def begin(self, version: int, session: Session) -> None:
        """CONNECT was accepted: from now on the client speaks `version`."""
        self.version = self._intake.version = version
        self.session = session
        self.last_seen = self._host.tick
        self._plain = self._host.encodings.get(version, 0, False, ())

    def take_aliases(self, count_max: int) -> None:
        """The client takes topic aliases up to this number; none if it is 0."""
        if count_max:
            self._aliases_out = OutgoingAliases(count_max)

    def _keep_early(self, data: bytes) -> None:
        """A client may send before its CONNACK came; it is read when that has been sent."""
        self._early.append(data)
        if sum(map(len, self._early)) > EARLY_BYTES_MAX:
            self._link.want_read(False)

    def go_on(self) -> None:
        """Read what the client sent behind its CONNECT."""
        if not self.is_closed:
            early, self._early = self._early, []
            self._link.want_read(True)
            self.receive(b"".join(early))

    def _publish(self, chunk: Chunk, item: PublishRun) -> None:
        session = self.session
        if session is None or self.state is not _CONNECTED:
            self.state = next_state(self.state, Role.CLIENT, Event.PUBLISH)
        assert session is not None
        exchange = self._exchange
        name = item.name
        if item.properties.topic_alias is not None:
            name = self._resolve(name, item.properties.topic_alias)
        run = published_run(chunk, item, name, exchange)
        run.publisher = session.client_id
        run.source = session
        if item.first_byte == _PLAIN_PUBLISH and not item.property_bytes:
            run.wire = self._plain
        route = exchange.router.find(run.name, self.principal)
        if run.qos == 0:
            if exchange.publish(route, run, None):
                self._hold(route.topic)
            return
        ids = chunk.packet_ids[item.first_id : item.first_id + run.count]
        receipt = self._receipt(_PUBACK if run.qos == 1 else _PUBREC, ids)
        if run.qos == 1:
            is_much = exchange.publish(route, run, receipt.done)
        else:
            is_much = exchange.publish_once(route, run, session, ids, receipt.done)
        if is_much or self.is_overdue:
            self._hold(route.topic)

    def _resolve(self, name: bytes, alias: int) -> bytes:
        if self._aliases_in is None:
            self._aliases_in = IncomingAliases()
        return self._aliases_in.resolve(name, alias)

    def _hold(self, topic: Topic) -> None:
        self._congested = topic
        self._host.hold(self)

    def _receipt(self, first_byte: int, packet_ids: list[int]) -> Receipt:
        """An answer to be given when it is true, after all that were asked for before."""
        if self._receipts is None:
            self._receipts = Receipts(self.send_receipts)
        return self._receipts.add(first_byte, packet_ids)

    def _acks(self, chunk: Chunk, item: AckRun) -> None:
        session = self.session
        if session is None or self.state != State.CONNECTED:
            raise protocol_error("an acknowledgement before CONNECT", "MQTT-3.1.0-1")
        ids = chunk.packet_ids[item.first_id : item.end_id]
        kind = item.first_byte
        if kind in (_PUBACK, _PUBCOMP):
            session.acknowledge(ids)
            if session.is_behind:
                self._exchange.resume(session)
        elif kind == _PUBREC:
            session.received(ids)
        else:
            self.release_opened(ids)

    def release_opened(self, packet_ids: list[int]) -> None:
        """The client will not send these QoS 2 messages again."""
        session = self.session
        assert session is not None
        receipt = self._receipt(_PUBCOMP, packet_ids)
        self._exchange.release(session, packet_ids, receipt.done)

    def send_receipts(self) -> None:
        """Acknowledge what is durable, up to the first message that is not."""
        receipts = self._receipts
        if receipts is None:
            return
        while not self.is_closed and (receipt := receipts.take()) is not None:
            if receipt.error is None:
                self._put(encode_acks(receipt.first_byte, receipt.packet_ids))
            else:
                self._refuse(receipt)
        if receipts.is_empty:
            self._receipts = None  # an idle connection does without

    @property
    def source(self) -> str:
        return self._link.source

    @property
    def certified_name(self) -> str | None:
        return self._link.certified_name

    @property
    def is_overdue(self) -> bool:
        """Too many of its messages wait for their commit, or too much of everybody's."""
        if self._receipts is not None and self._receipts.unacked > UNACKED_MAX:
            return True
        return self._congested is not None and self._congested.log.is_congested

    def read_on(self, wanted: bool) -> None:
        """Go on reading from the client, or stop for a while."""
        if not self.is_closed:
            self._link.want_read(wanted)

    def _refuse(self, receipt: Receipt) -> None:
        """Never ack what was not stored: MQTT 5 says why, before that only closing is left."""
        if self.version != MQTT_5 or receipt.first_byte == _PUBCOMP:
            self.close()
            return
        is_forbidden = isinstance(receipt.error, NotAuthorized)
        reason = Reason.NOT_AUTHORIZED if is_forbidden else Reason.QUOTA_EXCEEDED
        for packet_id in receipt.packet_ids:
            if receipt.first_byte == _PUBACK:
                self.put_packet(Puback(packet_id, reason))
            else:
                self.put_packet(Pubrec(packet_id, reason))

    # Messages out: the broker's Outbox

    @property
    def has_room(self) -> bool:
        return self._out_bytes < OUT_BYTES_ROOM and not self.is_closed

    def fits(self, size: int) -> bool:
        return not self._out_bytes or self._out_bytes + size <= OUT_BYTES_MAX

    def encoding(
        self, qos: int, retain_as_published: bool, identifiers: tuple[int, ...]
    ) -> Encoding:
        return self._host.encodings.get(self.version, qos, retain_as_published, identifiers)

    def forward(self, run: Run, data: bytes) -> None:
        if self.is_closed:
            return
        if not self.fits(len(data)):
            self._exchange.engine.metrics.dropped["queue_full"] += run.count
            return
        if len(data) > self.packet_bytes_max:  # then one of its packets may be
            data, too_large = packets_within(data, self.packet_bytes_max)
            self._exchange.engine.metrics.dropped["too_large"] += too_large
        if data:
            self._put_messages(run.name, data)

    def send(
        self, run: Run, first: int, packet_ids: list[int], encoding: Encoding, dup: bool
    ) -> None:
        assert isinstance(encoding, MqttEncoding)
        encoded = encoding.encoded(run)
        if encoded.packet_bytes_max > self.packet_bytes_max:
            self._send_fitting(run.name, encoded, first, packet_ids, dup)
            return
        data = put_packet_ids(encoded, first, packet_ids)
        if dup:
            assert len(packet_ids) == 1, "messages are sent again one by one"
            data = bytes((data[0] | _DUP,)) + data[1:]
        self._put_messages(run.name, data)

    def _send_fitting(
        self, name: str, encoded: EncodedRun, first: int, packet_ids: list[int], dup: bool
    ) -> None:
        """What is too large for the client counts as sent and done [MQTT-3.1.2-25]."""
        too_large = []
        for at, packet_id in enumerate(packet_ids, first):
            start = encoded.packet_ends[at - 1] if at else 0
            if encoded.packet_ends[at] - start > self.packet_bytes_max:
                too_large.append(packet_id)
                continue
            data = put_packet_ids(encoded, at, [packet_id])
            self._put_messages(name, bytes((data[0] | _DUP,)) + data[1:] if dup else data)
        self._exchange.engine.metrics.dropped["too_large"] += len(too_large)
        if self.session is not None:
            self.session.acknowledge(too_large)
        self._put(b"")  # a flush goes on from the log

    def release(self, packet_ids: list[int]) -> None:
        self._put(encode_acks(_PUBREL, packet_ids))

    def put_packet(self, packet: Packet) -> None:
        """Queue one packet, as far as the client takes packets of its size."""
        data = encode_within(packet, self.version, self.packet_bytes_max)
        if data:
            self._put(data)

    def _put_messages(self, name: str, data: bytes) -> None:
        """Queue PUBLISH packets of one name; nothing keeps them from leaving any more."""
        if self._aliases_out is not None:
            data = self._aliases_out.shorten(name, data, self.packet_bytes_max)
        self._put(data)

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if not self.is_dirty:
            self.is_dirty = True
            self._host.mark_dirty(self)

    def flush(self) -> None:
        """One write for all that this tick brought."""
        self.is_dirty = False
        if self.is_closed or self._rest is not None:
            return
        out = self._out
        if out:
            data = out[0] if len(out) == 1 else b"".join(out)
            self._out = []
            if data and not self._send(data):
                return
        session = self.session
        if session is not None and session.is_behind and self.has_room:
            self._exchange.resume(session)

    def _send(self, data: bytes | memoryview) -> bool:
        """Hand over what the socket takes; False if something is left, or the peer is gone."""
        try:
            sent = self._link.send(data)
        except OSError:
            self.close()
            return False
        self._out_bytes -= sent
        if sent < len(data):
            if self._rest is None:
                self._link.want_write(True)
            self._rest = memoryview(data)[sent:]
            return False
        if self._rest is not None:
            self._rest = None
            self._link.want_write(False)
        return True

    def on_writable(self) -> None:
        """The socket takes more."""
        rest = self._rest
        if not self.is_closed and (rest is None or self._send(rest)):
            self.flush()

    # The end

    def end(self, reason: Reason) -> None:
        """Say why, where the client's version has words for it, and close."""
        if self.is_closed:
            return
        if self.version == MQTT_5 and self.session is not None:
            self.put_packet(Disconnect(reason))
            self.flush()
        self.close()

    def close(self) -> None:
        """Close at once; whatever waits to be sent is let go."""
        if self.is_closed:
            return
        self.is_closed = True
        self.state = State.CLOSED
        self._link.close()
        self._out = []
        self._rest = None
        self._receipts = None
        self._host.forget(self)
