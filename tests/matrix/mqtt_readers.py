"""Every way to read over MQTT: live, kept, away, shared, from history, and what is retained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Disconnect, Publish
from penstock.mqtt.properties import Properties
from tests.doors.wire import Wire
from tests.matrix.house import END, Got, House, Message, Place
from tests.matrix.publishers import VERSIONS, WAYS
from tests.matrix.reading import Expected, Reader, add

FILTERS: Final = ("exact", "wildcard")
OFFSET: Final = "penstock-offset"


class Heard:
    """What one client is given, in the order in which it comes."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.got: list[Got] = []

    def hear(self, wait_s: float, *, until_end: bool) -> bool:
        """Take what comes, up to the end if it is to come; did it?"""
        while until_end and not self.has_ended:
            packet = self.wire.poll(wait_s)
            if packet is None:
                return False
            assert isinstance(packet, Publish), packet
            self._take(packet)
        return True

    def settle(self) -> None:
        """Take everything that is there by now: nothing, if all is well."""
        while said := self.wire.settle():
            for packet in said:
                assert isinstance(packet, Publish), packet
                self._take(packet)

    @property
    def has_ended(self) -> bool:
        return any(one.payload == END for one in self.got)

    def _take(self, message: Publish) -> None:
        self.wire.acknowledge(message)
        assert not message.dup
        offset = dict(message.properties.user_properties).get(OFFSET)
        place = None if offset is None else int(offset)
        self.got.append(Got(message.payload, message.name, place, message.qos))


class MqttReader:
    """One client, or two that share; `when` says what is done before the messages come."""

    def __init__(
        self,
        house: House,
        place: Place,
        *,
        version: int = MQTT_5,
        way: str = "tcp",
        qos: int,
        filter: str,
        label: str,
        stays: bool = False,
        is_away: bool = False,
        members: int = 0,
        from_: str = "",
        is_late: bool = False,
    ) -> None:
        self._house = house
        self._client_id = f"{place.key}-{label}"
        self._version, self._way, self._qos, self._stays = version, way, qos, stays
        filters = place.names if filter == "exact" else place.wildcards
        prefix = f"$share/{self._client_id}/" if members else ""
        self._filters = [f"{prefix}{one}" for one in dict.fromkeys(filters)]
        self._members = max(members, 1)
        self._from = from_
        self._is_away = is_away
        self._is_late = is_late
        self._heard = [] if is_late else [self._begin(number) for number in range(self._members)]
        if is_away:
            for one in self._heard:
                one.wire.disconnect()

    def _dial(self, number: int) -> Wire:
        client_id = f"{self._client_id}-{number}"
        return self._house.dial(client_id, self._version, self._way, stays=self._stays)

    def _begin(self, number: int) -> Heard:
        wire = self._dial(number)
        if self._from:
            answer = wire.subscribe_feed(*self._filters, qos=self._qos, from_=self._from)
        else:
            answer = wire.subscribe(*self._filters, qos=self._qos)
        assert set(answer.reasons) == {self._qos}, answer
        return Heard(wire)

    def collect(self) -> list[list[Got]]:
        if self._is_late:
            self._heard = [self._begin(0)]
        if self._is_away:
            self._heard = [Heard(self._dial(0))]  # one of a group is given what waits for it
        self._wait_for_end()
        for one in self._heard:
            one.settle()
        several = len(self._filters) > 1 and (self._members > 1 or self._from)
        if several or (self._is_late and not self._from):
            return self._by_name()
        return [one.got for one in self._heard]

    def _wait_for_end(self) -> None:
        if (self._is_away and not self._qos) or (self._is_late and not self._from):
            return  # the end is not for them
        if self._members == 1 or self._is_away:
            self._heard[0].hear(self._house.left_s, until_end=True)
            return
        while not any(one.has_ended for one in self._heard) and self._house.left_s > 0.1:
            for one in self._heard:  # the end goes to one of them
                one.hear(0.02, until_end=True)

    def _by_name(self) -> list[list[Got]]:
        """Several filters are several groups or feeds, and each has its own order."""
        found: dict[tuple[int, str | None], list[Got]] = {}
        for number, one in enumerate(self._heard):
            for got in one.got:
                found.setdefault((number, got.name), []).append(got)
        return list(found.values())

    def close(self) -> None:
        for one in self._heard:
            if self._stays and self._version == MQTT_5:
                forget = Disconnect(properties=Properties(session_expiry_interval=0))
                one.wire.send_and_close(forget)
            else:
                one.wire.close()
        if self._stays and self._version == MQTT_3_1_1:
            for number in range(self._members):
                self._house.dial(f"{self._client_id}-{number}", MQTT_3_1_1).close()


def at_most(qos: int) -> Expected:
    def expected(messages: Sequence[Message]) -> list[Message]:
        return [replace(one, qos=min(one.qos, qos)) for one in messages]

    return expected


def kept_at_most(qos: int) -> Expected:
    """QoS 0 is not kept for who is away."""

    def expected(messages: Sequence[Message]) -> list[Message]:
        return [one for one in at_most(qos)(messages) if one.qos]

    return expected


def retained_at_most(qos: int) -> Expected:
    """The last of every name; the end is none of them."""

    def expected(messages: Sequence[Message]) -> list[Message]:
        last = {one.name: one for one in at_most(qos)(messages) if one.retain}
        return list(last.values())

    return expected


def add_reader(label: str, expected: Expected, **how: Any) -> None:
    def attach(house: House, place: Place) -> Reader:
        return MqttReader(house, place, label=label, **how)

    add(label, attach, expected=expected, needs_topic=False)


for _qos in range(3):
    for _filter in FILTERS:
        _how: dict[str, Any] = {"qos": _qos, "filter": _filter}
        _end = f"qos{_qos}-{_filter}"
        for _name, _version in VERSIONS.items():
            _how["version"] = _version
            for _way in WAYS:
                add_reader(f"live-{_name}-{_way}-{_end}", at_most(_qos), way=_way, **_how)
            add_reader(f"kept-{_name}-{_end}", at_most(_qos), stays=True, **_how)
            add_reader(f"away-{_name}-{_end}", kept_at_most(_qos), stays=True, is_away=True, **_how)
        add_reader(f"share-{_end}", at_most(_qos), members=2, **_how)
        add_reader(
            f"share-away-{_end}",
            kept_at_most(_qos),
            members=2,
            stays=True,
            is_away=True,
            **_how,
        )
        add_reader(f"from-latest-{_end}", at_most(_qos), from_="latest", **_how)
        add_reader(f"from-earliest-{_end}", at_most(_qos), from_="earliest", is_late=True, **_how)
        add_reader(f"retained-{_end}", retained_at_most(_qos), is_late=True, **_how)
