"""Turns of load: conversations side by side, and how a row of several contenders is made."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.http.peers import ABSENT
from bench.http.talks import Talk
from bench.measure import Bar, Row, alternate, engine_figures
from bench.mqtt.servers import CEILING, Server
from bench.run import Bench

CEILING_FACTOR_MIN: Final = 1.5
DRAIN_S_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class Contender:
    """Who takes turns: `turn` drives it for so many seconds and gives messages per second."""

    turn: Callable[[float], float]
    server: Server | None = None  # which is left to become quiet between turns


@dataclass(frozen=True, slots=True)
class Asked:
    """What a row compares with, and the ratio it has to reach."""

    peer: str
    bar: Bar | None


def converse(talks: Sequence[Talk], per_request: int, turn_s: float) -> float:
    """Messages per second of conversations that each wait for their answer; closes them."""
    poll = select.epoll()
    by_fd = {talk.sock.fileno(): talk for talk in talks}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    answered = 0
    left = len(talks)
    begin = time.perf_counter()
    end_s = begin + turn_s
    is_over = False
    for talk in talks:
        talk.ask()
    while left:
        events = poll.poll(DRAIN_S_MAX)
        if not events:
            raise TimeoutError(f"{left} requests were not answered within {DRAIN_S_MAX:g} s")
        is_over = is_over or time.perf_counter() >= end_s
        for fd, _ in events:
            talk = by_fd[fd]
            if talk.hear():
                answered += 1
                if is_over:
                    left -= 1
                else:
                    talk.ask()
    taken_s = time.perf_counter() - begin
    poll.close()
    for talk in talks:
        talk.sock.close()
    return answered * per_request / taken_s


def conversing(open_talk: Callable[[], Talk], connections: int, per_request: int = 1) -> Contender:
    """A turn of so many conversations, opened anew each time."""

    def turn(turn_s: float) -> float:
        return converse([open_talk() for _ in range(connections)], per_request, turn_s)

    return Contender(turn)


def compare(
    bench: Bench,
    scenario: str,
    contenders: Mapping[str, Contender],
    asked: Sequence[Asked],
    notes: Sequence[str] = (),
) -> list[Row]:
    """Let all take turns; a row for each peer that something is asked against."""
    servers = [one.server for one in contenders.values() if one.server is not None]

    def taking(contender: Contender) -> float:
        for server in servers:
            server.wait_quiet()
        return contender.turn(bench.turn_s)

    turns = {name: (lambda one=one: taking(one)) for name, one in contenders.items()}
    taken = alternate(turns, bench.rounds)
    engines = [one.name for one in bench.engines]
    best = max(median(taken[name]) for name in engines)
    missing = [ABSENT[one.peer] for one in asked if one.peer not in taken]
    said = [*notes, *(f"NOT COMPARED: {text}" for text in missing)]
    if CEILING in taken:
        ceiling = median(taken[CEILING])
        said.append(f"generator's ceiling {ceiling:,.0f} /s")
        peers = [median(taken[one.peer]) for one in asked if one.peer in taken]
        if ceiling < CEILING_FACTOR_MIN * max([best, *peers]):
            said[-1] += ", under 1.5x a result here: that one is a lower bound"
    rows = []
    for at, one in enumerate(asked):
        beside = taken.get(one.peer)  # None if this machine does not have it
        rows.append(
            Row(
                f"{scenario}, against {one.peer}",
                "/s",
                engine_figures(engines, taken, beside),
                None if beside is None else (one.peer, median(beside)),
                one.bar,
                (f"NOT COMPARED: {ABSENT[one.peer]}",)
                if beside is None
                else tuple(said)
                if at == 0
                else (),
            )
        )
    return rows
