"""Topic aliases: numbers that stand for names on one connection, in each direction its own.

Both tables are bounded, and neither outlives its connection (MQTT 5 §3.3.2.3.4). What we send is
shortened at the last moment, when it is certain to leave: an alias the client never heard of would
cost it the connection. Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final

from penstock.mqtt.errors import ProtocolViolation, protocol_error
from penstock.mqtt.reasons import Reason
from penstock.mqtt.runs import alias_packets

ALIASES_MAX: Final = 128  # each way; with the longest names 8 MiB
NAME_BYTES_MIN: Final = 4  # below it an alias, which takes three bytes, saves nothing
GROWTH_BYTES_MAX: Final = 5  # of a packet that teaches an alias: the property, and both lengths


class IncomingAliases:
    """What the client's aliases stand for."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[int, bytes] = {}

    def resolve(self, name: bytes, alias: int) -> bytes:
        """The name that is meant; with a name given, the alias stands for it from now on."""
        if alias > ALIASES_MAX:
            raise ProtocolViolation(
                Reason.TOPIC_ALIAS_INVALID,
                f"topic alias {alias} is invalid: use 1 to {ALIASES_MAX}",
                "MQTT-3.3.2-9",
            )
        if name:
            self._names[alias] = name
            return name
        known = self._names.get(alias)
        if known is None:
            raise protocol_error(
                f"topic alias {alias} is not defined: send it with a name first",
                "MQTT 5 §3.3.2.3.4",
            )
        return known


class OutgoingAliases:
    """The aliases the client was taught, with the first message of a name while some are free.

    When all are given out, a name that is sent again takes the one that was not used for longest.
    """

    __slots__ = ("_aliases", "_count_max", "_once")

    def __init__(self, count_max: int) -> None:
        assert count_max > 0, "a client that takes no alias needs no table"
        self._count_max = min(count_max, ALIASES_MAX)
        self._aliases: dict[str, int] = {}  # name -> alias; the one sent last is at the end
        self._once: dict[
            str, None
        ] = {}  # sent lately, when none was free; bounded like the aliases

    def shorten(self, name: str, data: bytes, packet_bytes_max: int) -> bytes:
        """PUBLISH packets of one name as they are to leave, right now and in this order."""
        known = self._aliases
        alias = known.pop(name, 0)
        if alias:
            known[name] = alias
            return alias_packets(data, alias, False)
        # The first packet tells the alias and grows: it must still be one the client takes.
        if len(name) < NAME_BYTES_MIN or len(data) + GROWTH_BYTES_MAX > packet_bytes_max:
            return data
        if len(known) < self._count_max:
            known[name] = alias = len(known) + 1
        elif name in self._once:
            del self._once[name]
            known[name] = alias = known.pop(next(iter(known)))
        else:
            self._note(name)
            return data
        return alias_packets(data, alias, True)

    def _note(self, name: str) -> None:
        """Sent for the first time in a while; the next time is worth an alias of another name."""
        once = self._once
        if len(once) >= self._count_max:
            del once[next(iter(once))]
        once[name] = None
