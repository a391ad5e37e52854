"""A group's side at a reader: fetch, then say of each record whether it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.client.answer import ANSWER_S_MAX, check
from penstock.client.transport import Transport
from penstock.client.wire import RecordsIn, encode_position, group_path
from penstock.model.groups import (
    Redriven,
    check_deliveries_max,
    check_lease_s,
    redrive_all,
)
from penstock.model.record import Offsets, PositionLike, Record

ANSWER_WAY_OUT: Final = (
    "repeat the call; if it is refused because the records are not held, either it was carried out "
    "or their lease has ended"
)
REDRIVE_WAY_OUT: Final = "repeat the call; what was put back is not put back again"

GROUP_IS_DEPRECATED: Final = (
    "client.group(topic, group) is deprecated: use client.join_group(group, topic)"
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record that this reader holds until it answers, or its lease runs out."""

    record: Record
    deliveries: int  # how often it was given out, this time included
    receipt: str
    has_partitions: bool = False  # the topic has several: an answer has to name that of the record


class AsyncGroup:
    """One reader of a group. Several readers share the group's position."""

    def __init__(self, transport: Transport, topic: str, group: str) -> None:
        self._transport = transport
        self._path = group_path(topic, group)

    async def fetch(
        self,
        limit: int = 100,
        *,
        wait_s: float = 0.0,
        start: PositionLike = "earliest",
        lease_s: float | None = None,
        deliveries_max: int | None = None,
    ) -> list[Delivery]:
        """Records for this reader alone; waits up to `wait_s` for a first one.

        `lease_s` and `deliveries_max` hold for these records, else those of the group.
        """
        body: dict[str, Any] = {"limit": limit, "wait": wait_s, "from": encode_position(start)}
        body |= group_settings(lease_s, deliveries_max)
        answer = await self._transport.ask(
            "POST",
            f"{self._path}/fetch",
            msgspec.json.encode(body),
            silence_s_max=ANSWER_S_MAX + wait_s,
            way_out="fetch again; records of the lost answer come again when their lease ends",
        )
        found = msgspec.json.decode(check(answer), type=RecordsIn)
        has_partitions = isinstance(found.next_offset, dict)
        return [
            Delivery(one.record(found.topic), one.deliveries, found.receipt, has_partitions)
            for one in found.records
        ]

    async def ack(self, deliveries: Sequence[Delivery]) -> int:
        """They are done; durable on return. How many."""
        return await self._answer("ack", deliveries, {})

    async def nack(
        self, deliveries: Sequence[Delivery], *, delay_s: float = 0.0, reason: str = ""
    ) -> int:
        """Give them back, for others at once or after a delay."""
        return await self._answer("nack", deliveries, {"delay": delay_s, "reason": reason})

    async def extend(self, deliveries: Sequence[Delivery], *, lease_s: float | None = None) -> int:
        """Their leases end `lease_s` from now, else after the lease of the group. How many."""
        return await self._answer("extend", deliveries, group_settings(lease_s, None))

    async def _answer(self, verb: str, deliveries: Sequence[Delivery], more: dict[str, Any]) -> int:
        by_receipt: dict[str, list[Delivery]] = {}
        for one in deliveries:
            by_receipt.setdefault(one.receipt, []).append(one)
        done = 0
        for receipt, held in by_receipt.items():
            body = {"receipt": receipt, "offsets": _places(held)} | more
            answer = await self._transport.ask(
                "POST", f"{self._path}/{verb}", msgspec.json.encode(body), way_out=ANSWER_WAY_OUT
            )
            check(answer)
            done += len(held)
        return done

    async def info(self) -> dict[str, Any]:
        """How the group stands: next_offset, lag, pending, lease_s, deliveries_max."""
        answer = await self._transport.ask("GET", self._path, may_repeat=True)
        found: dict[str, Any] = msgspec.json.decode(check(answer))
        return found

    async def delete(self) -> None:
        """Forget the group and its position."""
        check(
            await self._transport.ask(
                "DELETE", self._path, way_out="repeat the call; NotSubscribed means it is deleted"
            )
        )


def _places(held: Sequence[Delivery]) -> list[int] | dict[str, list[int]]:
    """Offsets, by partition where there are several."""
    if not held[0].has_partitions:
        return [one.record.offset for one in held]
    found: dict[str, list[int]] = {}
    for one in held:
        found.setdefault(str(one.record.partition), []).append(one.record.offset)
    return found


def group_settings(lease_s: float | None, deliveries_max: int | None) -> dict[str, Any]:
    """Settings as `/v1` takes them; InvalidSetting for values outside their range."""
    values = {
        "lease_s": check_lease_s(lease_s),
        "deliveries_max": check_deliveries_max(deliveries_max),
    }
    return {key: value for key, value in values.items() if value is not None}


async def redrive_steps(
    transport: Transport,
    topic: str,
    group: str,
    limit: int | None,
    where: str | None,
    is_dry_run: bool,
) -> int:
    """One request after another until all dead letters that are wanted are put back."""
    path = f"{group_path(topic, group)}/redrive"

    async def step(start: Offsets, limit: int) -> Redriven:
        body = {"from": start, "limit": limit, "dry_run": is_dry_run, "where": where}
        answer = await transport.ask(
            "POST", path, msgspec.json.encode(body), may_repeat=is_dry_run, way_out=REDRIVE_WAY_OUT
        )
        return msgspec.json.decode(check(answer), type=Redriven)

    return await redrive_all(step, limit)
