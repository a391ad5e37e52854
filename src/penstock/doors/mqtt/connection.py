"""One MQTT connection: bytes in, runs to the publisher; messages and acknowledgements out.

Acknowledgements leave in the order the messages arrived, each after its message is durable. What
waits to be sent is bounded: beyond it messages of QoS 0 are dropped and counted, and the session
lags behind in the log for the others. Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.deliver.routes import UNBOUNDED, WORK_PER_TURN, MustWait
from penstock.broker.exchange import Exchange
from penstock.broker.session.session import Session
from penstock.broker.trace.watch import Watch
from penstock.core.access import NOBODY, Principal
from penstock.core.delivery.run import Encoding, Run
from penstock.doors.link import Link
from penstock.doors.mqtt.aliases import OutgoingAliases
from penstock.doors.mqtt.answers import explained, unexplained
from penstock.doors.mqtt.arrive.early_bytes import CONNECT_BYTES_MAX
from penstock.doors.mqtt.encoding import MqttEncoding, packets_within, with_ids_within
from penstock.doors.mqtt.host import Host
from penstock.doors.mqtt.receive.acks import take_acks
from penstock.doors.mqtt.receive.decoding import COST_PER_TURN, cost_of, decoded
from penstock.doors.mqtt.receive.gate import Gate
from penstock.doors.mqtt.receive.mixed import ALONE, plain_neighbours
from penstock.doors.mqtt.receive.publishing import PUBREL, Publishing
from penstock.doors.mqtt.unsent import LARGE_BYTES, Backlog, joined, take_write
from penstock.model.certificate import Certificate
from penstock.model.limits import KIB, MIB
from penstock.mqtt.encode import encode_within
from penstock.mqtt.kinds import MQTT_5, UNKNOWN_VERSION, Role
from penstock.mqtt.packets import Disconnect, Packet
from penstock.mqtt.reasons import Reason
from penstock.mqtt.runs import PLAIN_ACK_BYTES, EncodedRun, encode_acks, large_head, put_packet_ids
from penstock.mqtt.scanner import AckRun, Chunk, Intake, PublishRun
from penstock.mqtt.state import Event, State, next_state

BURST_BYTES_MAX: Final = 256 * KIB  # queued in one tick; then it is sent before the tick ends
ANSWER_BYTES_MAX: Final = 512 * KIB  # that a client did not take; then it is not read on
PACKET_BYTES_MAX: Final = 16 * MIB + 256 * KIB  # payload, name and properties

_DUP: Final = 0x08
_CONNECTED: Final = State.CONNECTED
_WAIT_CONNACK: Final = State.WAIT_CONNACK


class Connection:
    """Implements the broker's Outbox."""

    __slots__ = (
        "_aliases_out",
        "_answer_bytes",
        "_backlog",
        "_host",
        "_intake",
        "_link",
        "_out",
        "_out_bytes",
        "_plain",
        "_rest",
        "_router",
        "_serving",
        "_traffic",
        "begun",
        "certificate",
        "end_reason",
        "exchange",
        "gate",
        "is_bridge",
        "is_closed",
        "is_dirty",
        "keep_alive_s",
        "last_seen",
        "packet_bytes_max",
        "principal",
        "proof",
        "session",
        "source",
        "state",
        "stuck_since",
        "version",
        "wants_reasons",
        "watch",
    )

    def __init__(self, host: Host, link: Link) -> None:
        self._host = host
        self._serving = host.serving
        self._link = link
        self.source = link.source
        self.certificate: Certificate | None = link.certificate
        self.gate = Gate(link, host.early_budget)
        self.exchange: Exchange = host.exchange  # of its tenant, once it is let in
        self._router = self.exchange.router
        self._traffic = self.exchange.engine.metrics.traffic
        self._intake = Intake(UNKNOWN_VERSION, CONNECT_BYTES_MAX)
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._answer_bytes = 0  # of answers since all was last sent
        self._rest: memoryview | None = None  # of a write the socket did not take whole
        self._backlog = Backlog(host.unsent)
        self.stuck_since = -1  # its place among those whose socket did not take all that was sent
        self._plain: MqttEncoding | None = None
        self._aliases_out: OutgoingAliases | None = None
        self.begun: Publishing | None = None  # once the client publishes
        self.state = State.WAIT_CONNECT
        self.version = UNKNOWN_VERSION
        self.session: Session | None = None
        self.principal: Principal = NOBODY  # until the login succeeds
        self.proof = ""  # its type of credential
        self.end_reason = ""  # why its end was decided
        self.packet_bytes_max = PACKET_BYTES_MAX  # what the client takes
        self.watch: Watch | None = None  # while a trace is on
        self.wants_reasons = True  # texts with reason codes [MQTT-3.1.2-29]
        self.keep_alive_s = 0
        self.last_seen = host.serving.tick
        self.is_closed = self.is_dirty = False
        self.is_bridge = False  # said so in its CONNECT

    # Bytes in

    def receive(self, data: bytes) -> None:
        """Bytes from the client; a violation ends the connection with its reason."""
        gate = self.gate
        if self.session is not None:  # until then only the connect timeout counts
            self.last_seen = self._serving.tick
        if gate.is_paused or self.state is _WAIT_CONNACK:
            gate.keep_early(data)
            if self.session is None and not gate.may_hold(0, 0):
                self._host.refuse_stranger(self)
            return
        if gate.paused_at is None:
            self._traffic.bytes_received += len(data)
            chunk, at = self._intake.feed(data), 0
        else:  # nothing new came: the rest of what did
            chunk, at = gate.paused_at
            gate.paused_at = None
        router = self._router  # a CONNECT in these bytes may change it
        router.work_left = WORK_PER_TURN
        try:
            self._take(chunk, at)
        except Exception as error:  # whatever carries the bytes: nobody else may notice
            self._host.fail(self, error)
        router.work_left = UNBOUNDED
        if self._answer_bytes > ANSWER_BYTES_MAX:
            self._out = joined(self._out)  # a PINGRESP of its own costs 20 times its bytes
            gate.is_deaf = True
            gate.look()
        if self.session is None and not gate.may_hold(chunk.consumed, self._intake.held_bytes):
            self._host.refuse_stranger(self)

    def _take(self, chunk: Chunk, at: int) -> None:
        traffic, items = self._traffic, chunk.items
        left = COST_PER_TURN
        while at < len(items) and not self.is_closed:
            item = items[at]
            at += 1
            if isinstance(item, PublishRun):
                if self.state is not _CONNECTED:
                    self.state = next_state(self.state, Role.CLIENT, Event.PUBLISH)
                neighbours = plain_neighbours(items, at - 1) if at < len(items) else ALONE
                last = item
                if len(neighbours) > 1:
                    last = neighbours[-1]
                    at += len(neighbours) - 1
                traffic.publishes_received += last.end_message - item.first_message
                traffic.publish_bytes_received += last.end - item.start
                publishing = self.begun or self.publishing()
                try:
                    if last is item:
                        publishing.publish(chunk, item)
                    else:
                        publishing.publish_plain(chunk, neighbours)
                except MustWait as wait:
                    self._host.wait(self, chunk, publishing.stopped_at, last, wait)
                    return
                if publishing.meter is not None:
                    publishing.measure(last.end_message - item.first_message, last.end - item.start)
            elif isinstance(item, AckRun):
                traffic.controls_received += item.end_id - item.first_id
                take_acks(self, item.first_byte, chunk.packet_ids[item.first_id : item.end_id])
            else:
                if left <= 0:
                    self.gate.pause(chunk, at - 1)
                    self._host.wait_turn(self)
                    return
                left -= cost_of(item)
                traffic.controls_received += 1
                self._host.handle(self, decoded(self, chunk, item))
                if self.gate.is_paused:
                    self.gate.paused_at = (chunk, at)
                    return
        if chunk.violation is not None:
            raise chunk.violation

    def unpause(self) -> None:
        """Go on with what is left of the bytes that were taken, then with what came behind them."""
        gate = self.gate
        gate.is_paused = False
        if not self.is_closed:
            assert gate.paused_at is not None
            self.receive(b"")
            if not gate.is_paused:
                self.go_on()

    def begin(self, version: int, session: Session, exchange: Exchange) -> None:
        """CONNECT was accepted: from now on the client speaks `version`, with its tenant."""
        self.exchange, self._router = exchange, exchange.router
        self._traffic, self.watch = exchange.engine.metrics.traffic, exchange.engine.watch
        self.version = self._intake.version = version
        self._intake.packet_bytes_max = PACKET_BYTES_MAX
        self.gate.let_in()
        self.session, self.last_seen = session, self._serving.tick
        self._plain = self._host.encodings.get(version, 0, False, ())

    def take_aliases(self, count_max: int) -> None:
        """The client takes topic aliases up to this number; none if it is 0."""
        if count_max:
            self._aliases_out = OutgoingAliases(count_max)

    def go_on(self) -> None:
        """Read what the client sent behind its CONNECT."""
        if not self.is_closed:
            self.receive(self.gate.take_early())

    def publishing(self) -> Publishing:
        """What the client publishes goes through here; made when it begins to."""
        if self.begun is None:
            session, plain = self.session, self._plain
            assert session is not None and plain is not None
            self.begun = Publishing(self, session, self.exchange.publisher, plain)
        return self.begun

    def hold(self, wait_s: float) -> None:
        """Stop reading from the client for a moment, or for so long."""
        self.gate.hold()
        self._host.hold(self, wait_s)

    @property
    def is_overdue(self) -> bool:
        return self.begun is not None and self.begun.is_overdue

    @property
    def peer(self) -> str:
        return self._link.peer

    # Messages out: the broker's Outbox

    @property
    def has_room(self) -> bool:
        return self._out_bytes < self._backlog.unsent.room and not self.is_closed

    def fits(self, size: int) -> bool:
        return not self._out_bytes or self._out_bytes + size <= self._backlog.unsent.most

    def encoding(
        self, qos: int, retain_as_published: bool, identifiers: tuple[int, ...]
    ) -> Encoding:
        return self._host.encodings.get(self.version, qos, retain_as_published, identifiers)

    def forward(self, name: str, count: int, data: bytes) -> None:
        if self.is_closed:
            return
        if not self.fits(len(data)):
            self._drop(name, count, "queue_full")
            return
        if count == 1 and LARGE_BYTES <= len(data) <= self.packet_bytes_max:
            self._put_large(b"", data)
        else:
            if len(data) > self.packet_bytes_max:  # then one of its packets may be
                data, too_large = packets_within(data, self.packet_bytes_max)
                self._drop(name, too_large, "too_large")
                count -= too_large
            self._traffic.publishes_sent += count
            if data:
                self._put_messages(name, data)
        if self.watch is not None:
            self.watch.forwarded(self.session, name, count)

    def _drop(self, name: str, count: int, reason: str) -> None:
        self.exchange.engine.metrics.dropped[reason] += count
        if self.watch is not None:
            self.watch.dropped(self.session, name, count, reason)

    def send(
        self, run: Run, first: int, packet_ids: list[int], encoding: Encoding, dup: bool
    ) -> None:
        assert isinstance(encoding, MqttEncoding)
        encoded = encoding.encoded(run)
        if encoded.packet_bytes_max > self.packet_bytes_max:
            self._send_fitting(run.name, encoded, first, packet_ids, dup)
            return
        if self.watch is not None:
            self.watch.sent(self.session, run.name, packet_ids, encoding.qos, dup)
        if run.count == 1:
            at, raw = encoded.id_positions[0], encoded.raw
            if at + LARGE_BYTES <= len(raw):
                self._put_large(large_head(encoded, packet_ids[0], dup), encoded.tail)
                return
            data = raw[:at] + packet_ids[0].to_bytes(2, "big") + raw[at + 2 :]
        else:
            data = put_packet_ids(encoded, first, packet_ids)
        if dup:
            assert len(packet_ids) == 1, "messages are sent again one by one"
            data = bytes((data[0] | _DUP,)) + data[1:]
        self._traffic.publishes_sent += len(packet_ids)
        self._put_messages(run.name, data)

    def _send_fitting(
        self, name: str, encoded: EncodedRun, first: int, packet_ids: list[int], dup: bool
    ) -> None:
        """What is too large for the client counts as sent and done [MQTT-3.1.2-25]."""
        packets, too_large = with_ids_within(encoded, first, packet_ids, self.packet_bytes_max)
        for data in packets:
            self._put_messages(name, bytes((data[0] | _DUP,)) + data[1:] if dup else data)
        self._drop(name, len(too_large), "too_large")
        self._traffic.publishes_sent += len(packets)
        if self.session is not None:
            self.session.acknowledge(too_large)
        self._put(b"")  # a flush goes on from the log

    def release(self, packet_ids: list[int]) -> None:
        self.put_acks(PUBREL, packet_ids, Reason.SUCCESS)

    def put_acks(self, first_byte: int, packet_ids: list[int], reason: Reason) -> None:
        """Queue acknowledgements of one kind; before MQTT 5 they say no reason."""
        self._traffic.controls_sent += len(packet_ids)
        is_said = self.version == MQTT_5 and self.packet_bytes_max > PLAIN_ACK_BYTES
        if len(packet_ids) == 1 and not (reason and is_said):
            data = bytes((first_byte, 2)) + packet_ids[0].to_bytes(2, "big")
        else:
            data = encode_acks(first_byte, packet_ids, reason if is_said else 0)
        self._answer_bytes += len(data)
        self._put(data)

    def put_packet(self, packet: Packet) -> None:
        """Queue one packet, unless it is larger than the client accepts."""
        if not self.wants_reasons:
            packet = unexplained(packet)
        data = encode_within(packet, self.version, self.packet_bytes_max)
        if data:
            self._traffic.controls_sent += 1
            self._answer_bytes += len(data)
            self._put(data)

    def _put_messages(self, name: str, data: bytes) -> None:
        """Queue PUBLISH packets of one name; they are certain to be sent."""
        if self._aliases_out is not None:
            data = self._aliases_out.shorten(name, data, self.packet_bytes_max)
        self._traffic.publish_bytes_sent += len(data)
        self._put(data)

    def _put_large(self, head: bytes, tail: bytes) -> None:
        """Queue one message, of which `tail` is not copied: other readers of it may wait, too."""
        self._traffic.publishes_sent += 1
        self._traffic.publish_bytes_sent += len(head) + len(tail)
        if head:
            self._put(head)
        self._backlog.add(tail)
        self._put(tail)
        self._send_early()

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if not self.is_dirty:
            self.is_dirty = True
            self._serving.mark_dirty(self)
        if self._out_bytes > self._backlog.counted + self._backlog.large_bytes + BURST_BYTES_MAX:
            self._send_early()

    def _send_early(self) -> None:
        """Much came at once: hand over what the socket takes, and count the rest."""
        while self._out and self._rest is None and not self.is_closed:
            data = take_write(self._out)
            try:
                sent = self._link.send(data)
            except OSError:  # gone: the flush of this tick finds out, too
                sent = 0
            self._out_bytes -= sent
            self._traffic.bytes_sent += sent
            if sent < len(data):
                self._link.want_write(True)
                self._rest = memoryview(data)[sent:]
                self.stuck_since = self._backlog.unsent.next_stuck()
            elif len(data) >= LARGE_BYTES:
                self._backlog.sent(data)
        if not self.is_closed:
            self._backlog.count(self._out_bytes)

    def flush(self) -> None:
        """One write for all that this tick brought."""
        self.is_dirty = False
        if self.is_closed:
            return
        if self._rest is not None:
            self._backlog.count(self._out_bytes)
            return
        while self._out:
            out = self._out
            if self._backlog.large_bytes or self._out_bytes > BURST_BYTES_MAX:
                data = take_write(out)
            else:
                data = out[0] if len(out) == 1 else b"".join(out)
                self._out = []
            if data and not self._send(data):
                return
        self._answer_bytes = 0
        if self.gate.is_deaf:
            self.gate.is_deaf = False
            self.gate.look()
        one = self.session  # asked here, not by a call: every flush comes by
        if one is None or not (one.lags or one.stalled or one.shares or one.room_waiters):
            return
        if self.has_room:
            self.exchange.sessions.resume(one)

    def _send(self, data: bytes | memoryview) -> bool:
        """Hand over what the socket takes; False if something is left, or the peer is gone."""
        try:
            sent = self._link.send(data)
        except OSError:
            self.close()
            return False
        self._out_bytes -= sent
        self._traffic.bytes_sent += sent
        if sent < len(data):
            if self._rest is None:
                self._link.want_write(True)
            if sent or self.stuck_since < 0:
                self.stuck_since = self._backlog.unsent.next_stuck()
            self._rest = memoryview(data)[sent:]
            self._backlog.count(self._out_bytes)
            return False
        if self._backlog.large_bytes:
            self._backlog.sent(data.obj if isinstance(data, memoryview) else data)
        if self._rest is not None:
            self._rest, self.stuck_since = None, -1
            self._link.want_write(False)
            self._backlog.count(self._out_bytes)
        return True

    def on_writable(self) -> None:
        """The socket takes more."""
        rest = self._rest
        try:
            if not self.is_closed and (rest is None or self._send(rest)):
                self.flush()
        except Exception as mistake:
            self._serving.give_up(self, mistake)

    # The end

    def end(self, reason: Reason, why: str = "") -> None:
        """Say why, where the client's version has words for it, and close when it is read."""
        if self.is_closed:
            return
        self.end_reason = why
        if self.session is not None and self.version == MQTT_5:
            self.put_packet(Disconnect(reason, explained(why)))
        self.leave()

    def leave(self) -> None:
        """Close when the client has read what waits to be sent, or had time to."""
        if self.is_closed:
            return
        is_unread = self._out_bytes > LARGE_BYTES and self._backlog.unsent.is_crowded
        if is_unread or (self.session is None and not self._out_bytes):
            self.close()  # one of many that do not read, or one that was never spoken to
            return
        data = b"".join(self._out if self._rest is None else [bytes(self._rest), *self._out])
        self._traffic.bytes_sent += len(data)
        self._host.linger(len(data))
        self._link.close_after(data)
        self._forget()

    def close(self) -> None:
        """Close at once and discard what waits to be sent."""
        if not self.is_closed:
            self._link.close()
            self._forget()

    def break_off(self) -> None:
        """Close at once: we made a mistake."""
        self.end_reason = "internal server error"
        self.close()

    def _forget(self) -> None:
        self.is_closed = True
        self.state = State.CLOSED
        self._out = []
        self._rest = self.begun = None
        self._backlog.close()
        self.gate.close()
        try:
            self._host.forget(self)
        except Exception as mistake:
            self._serving.give_up(self, mistake)
