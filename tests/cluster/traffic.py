"""Clients that go to another node when theirs is gone, and the account of what they were told.

Numbers are published in order, one at a time, until each is acknowledged. A subscriber with a
session has to receive all of them: QoS 2 once, and every name in order.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from penstock.mqtt.packets import (
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Will,
)
from penstock.mqtt.reasons import Reason
from tests.cluster.node_world import NodeWorld
from tests.doors.wire import Wire
from tests.waiting import WAIT_S, wait_until

PATIENCE_S = 4.0  # a node that says nothing for so long is given up
SILENCE_S = 1.5  # then a subscriber asks whether its node is there
JOIN_S_MAX = 60.0
MORTALS = 4
WILLS = "wills"


class Client:
    """A client with a session that goes to another node when its own is gone."""

    def __init__(self, world: NodeWorld, client_id: str, seed: int) -> None:
        self.client_id = client_id
        self.away_s: list[float] = []  # how long it had no connection, each time
        self.stopping = threading.Event()
        self.trouble = ""
        self.home: int | None = None  # the node that it prefers; None: any
        self.moving = threading.Event()  # it has to connect anew
        self._world = world
        self._random = random.Random(seed)
        self._is_new = True
        self._thread = threading.Thread(target=self._run, name=client_id, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self.stopping.set()
        self._thread.join(JOIN_S_MAX)
        assert not self._thread.is_alive()
        assert not self.trouble, self.trouble

    def serve(self, wire: Wire) -> None:
        raise NotImplementedError

    @property
    def _goes_on(self) -> bool:
        return not self.stopping.is_set() and not self.moving.is_set()

    def _run(self) -> None:
        while not self.stopping.is_set() and not self.trouble:
            self.moving.clear()
            since_s = time.monotonic()
            was_new = self._is_new
            wire = self._connect()
            if wire is None:
                return
            if not was_new:
                self.away_s.append(time.monotonic() - since_s)
            with suppress(EOFError, OSError):
                self.serve(wire)
            if not self.moving.is_set():
                self.home = None  # its node is gone, or rejects what it publishes
            wire.close()

    def _connect(self) -> Wire | None:
        while not self.stopping.is_set():
            at = self._random.randrange(len(self._world.nodes)) if self.home is None else self.home
            try:
                wire, answer = self._world.connect(
                    at, self.client_id, is_clean=self._is_new, patience_s=PATIENCE_S
                )
            except (OSError, EOFError):
                self.home = None
                time.sleep(0.05)
                continue
            if answer.reason == Reason.SUCCESS:
                if not self._is_new and not answer.session_present:
                    self.trouble = f"the session of {self.client_id} was lost"
                self._is_new = False
                return wire
            wire.close()
        return None


class Sender(Client):
    """Publishes numbers, one at a time, and sends each again until it is acknowledged."""

    def __init__(
        self, world: NodeWorld, name: str, qos: int, seed: int, *, retain: bool = False
    ) -> None:
        super().__init__(world, f"sender-{name}", seed)
        self.name = name
        self.qos = qos
        self.acked = 0  # all below it are
        self._retain = retain
        self._is_releasing = False
        self._was_sent = False

    def serve(self, wire: Wire) -> None:
        while self._goes_on:
            packet_id = self.acked % 60_000 + 1
            if not self._is_releasing:
                wire.send(
                    Publish(
                        name=self.name,
                        payload=str(self.acked).encode(),
                        qos=self.qos,
                        retain=self._retain,
                        packet_id=packet_id,
                        dup=self._was_sent,
                    )
                )
                self._was_sent = True
                if self.qos == 1:
                    self._wait(wire, Puback, packet_id)
                else:
                    self._wait(wire, Pubrec, packet_id)
                    self._is_releasing = True
            if self._is_releasing:
                wire.send(Pubrel(packet_id))
                self._wait(wire, Pubcomp, packet_id)
            self._is_releasing = self._was_sent = False
            self.acked += 1

    def _wait(self, wire: Wire, kind: type[Packet], packet_id: int) -> None:
        answer = wire.pick(kind, packet_id)
        reason = getattr(answer, "reason", Reason.SUCCESS)
        if isinstance(answer, Pubcomp) and reason == Reason.PACKET_IDENTIFIER_NOT_FOUND:
            return  # released before its node was gone (MQTT 5, 4.3.3)
        if reason >= 0x80:
            raise EOFError(f"rejected: {answer}")


class Receiver(Client):
    """Keeps what it is sent, as a client of QoS 2 does."""

    def __init__(self, world: NodeWorld, tag: str, seed: int) -> None:
        super().__init__(world, f"receiver-{tag}", seed)
        self.is_subscribed = False
        self.got: dict[str, list[int]] = {}
        self._filter = f"{tag}/#"
        self._unreleased: set[int] = set()

    def serve(self, wire: Wire) -> None:
        if not self.is_subscribed:
            wire.subscribe(self._filter, qos=2)
            self.is_subscribed = True
        heard_s = asked_s = time.monotonic()
        while self._goes_on:
            packet = wire.poll(0.3)
            now_s = time.monotonic()
            if packet is not None:
                heard_s = now_s
                self._take(wire, packet)
            elif now_s - heard_s > PATIENCE_S:
                raise EOFError("the node says nothing")
            elif now_s - max(heard_s, asked_s) > SILENCE_S:
                asked_s = now_s
                wire.send(Pingreq())

    def _take(self, wire: Wire, packet: Packet) -> None:
        if isinstance(packet, Pubrel):
            self._unreleased.discard(packet.packet_id)
            wire.send(Pubcomp(packet.packet_id))
        elif isinstance(packet, Publish) and packet.qos == 1:
            self._keep(packet)
            wire.send(Puback(packet.packet_id))
        elif isinstance(packet, Publish):
            if packet.packet_id not in self._unreleased:
                self._unreleased.add(packet.packet_id)
                self._keep(packet)
            wire.send(Pubrec(packet.packet_id))
        elif not isinstance(packet, Pingresp):
            raise EOFError(f"sent away: {packet}")

    def _keep(self, message: Publish) -> None:
        self.got.setdefault(message.name, []).append(int(message.payload))


class Mortal(Client):
    """Lives once on each connection: its will is due whenever that is lost, each a number."""

    def __init__(self, world: NodeWorld, tag: str, number: int, seed: int) -> None:
        super().__init__(world, f"mortal-{tag}-{number}", seed)
        self.name = f"{tag}/{WILLS}/{number}"
        self.lives = 0  # those that ended with a loss are the wills 0, 1, ...
        self.unsure: set[int] = set()  # those that may never have been connected

    def _connect(self) -> Wire | None:
        """Another client id for each life: nobody comes back and calls a will off."""
        while not self.stopping.is_set():
            at = self._random.randrange(len(self._world.nodes))
            will = Will(self.name, str(self.lives).encode(), qos=2)
            client_id = f"{self.client_id}-{self.lives}"
            try:
                wire, answer = self._world.connect(
                    at, client_id, is_clean=True, expiry_s=0, will=will, patience_s=PATIENCE_S
                )
            except (OSError, EOFError):  # it may have been connected, and nobody told
                self.unsure.add(self.lives)
                self.lives += 1
                time.sleep(0.05)
                continue
            if answer.reason == Reason.SUCCESS:
                return wire
            wire.close()
        return None

    def serve(self, wire: Wire) -> None:
        try:
            while not self.stopping.is_set():
                wire.send(Pingreq())
                wire.pick(Pingresp)
                self.stopping.wait(0.3)
        finally:
            self.lives += 1  # also at the end: it closes without saying goodbye


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the traffic."""

    acked: dict[str, int]
    wills: int
    away_s: list[float]  # sorted

    def __str__(self) -> str:
        worst = f"{self.away_s[-1]:.1f}" if self.away_s else "0"
        middle = f"{self.away_s[len(self.away_s) // 2]:.1f}" if self.away_s else "0"
        return (
            f"acknowledged {self.acked}, none lost, no QoS 2 twice, in order; {self.wills} wills, "
            f"each once; {len(self.away_s)} times away, {middle} s median, {worst} s at most"
        )


class Traffic:
    """Publishers of QoS 1 and 2 and a subscriber; at the end everything has to be right."""

    def __init__(self, world: NodeWorld, tag: str, seed: int, *, is_full: bool = False) -> None:
        """`is_full`: with wills and retained messages, too."""
        self.world = world
        self.tag = tag
        self.receiver = Receiver(world, tag, seed)
        self.senders = [Sender(world, f"{tag}/{qos}", qos, seed + qos) for qos in (1, 2)]
        self.mortals: list[Mortal] = []
        if is_full:
            self.senders.append(Sender(world, f"{tag}/kept", 1, seed + 3, retain=True))
            self.mortals += [Mortal(world, tag, one, seed + 4 + one) for one in range(MORTALS)]

    def __enter__(self) -> Self:
        self.receiver.start()
        wait_until(lambda: self.receiver.is_subscribed)
        for one in (*self.senders, *self.mortals):
            one.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in (*self.senders, *self.mortals, self.receiver):
            one.stopping.set()

    def prefer(self, at: int) -> None:
        """Clients go to this node now, and stay there as long as it answers."""
        for one in (*self.senders, self.receiver):
            one.home = at
            one.moving.set()

    def go_on(self, count: int = 5) -> None:
        """Suspends until so many more messages were acknowledged to each publisher."""
        before = [one.acked for one in self.senders]
        wait_until(
            lambda: all(
                one.acked >= was + count or one.trouble
                for one, was in zip(self.senders, before, strict=True)
            )
        )

    def settle(self) -> Account:
        for one in (*self.senders, *self.mortals):
            one.join()
        got = self.receiver.got
        for sender in self.senders:
            self._see_all(sender)
        for mortal in self.mortals:
            self._see_wills(mortal)
        self._see_retained()
        self.receiver.join()
        for name, numbers in got.items():
            if f"/{WILLS}/" in name:
                assert len(numbers) == len(set(numbers)), f"a will was published twice: {numbers}"
                continue
            if name.endswith("/2"):
                repeated = Counter(numbers).most_common(3)
                assert len(numbers) == len(set(numbers)), f"twice: {repeated}"
            first_seen = list(dict.fromkeys(numbers))
            assert first_seen == sorted(first_seen), f"{name} is out of order"
        away_s = sorted(s for one in (*self.senders, self.receiver) for s in one.away_s)
        acked = {one.name: one.acked for one in self.senders}
        wills = sum(len(got.get(mortal.name, [])) for mortal in self.mortals)
        return Account(acked, wills, away_s)

    def _see_all(self, sender: Sender) -> None:
        """Everything that was acknowledged has to be received; names what is missing."""
        until_s = time.monotonic() + WAIT_S
        while True:
            got = self.receiver.got.get(sender.name, [])
            missing = sorted(set(range(sender.acked)) - set(got))
            if not missing:
                return
            assert time.monotonic() < until_s, (
                f"{sender.name}: {sender.acked} were acknowledged and {len(missing)} not received: "
                f"{missing[:5]} to {missing[-1]}; the last ones were {got[-3:]}"
            )
            time.sleep(0.05)

    def _see_wills(self, mortal: Mortal) -> None:
        lives = set(range(mortal.lives)) - mortal.unsure
        got = self.receiver.got
        wait_until(lambda: lives <= set(got.get(mortal.name, [])))
        assert set(got.get(mortal.name, [])) <= lives | mortal.unsure

    def _see_retained(self) -> None:
        """Every node has the newest retained message."""
        for sender in self.senders:
            if not sender.name.endswith("/kept"):
                continue
            newest = self.receiver.got[sender.name][-1]
            for at in range(len(self.world.nodes)):
                client_id = f"viewer-{self.tag}-{at}"
                wire, _ = self.world.connect(at, client_id, is_clean=True, expiry_s=0)
                wire.subscribe(sender.name, qos=1)
                assert int(wire.receive().payload) == newest
                wire.close()
