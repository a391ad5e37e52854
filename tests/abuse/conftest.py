"""One real broker for all the abuse, and the question asked after each: is it as well as before?"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import pytest

from penstock.model.limits import MIB
from tests.doors.served import Served
from tests.doors.wire import Wire

ROUND_TRIP_S_MAX = 1.0
MEMORY_BYTES_MAX = 64 * MIB  # what abuse may leave behind, at most
SETTLE_S_MAX = 20.0  # for connections to be let go and buffers to be freed


class Patient:
    """A broker that is abused, and a healthy client of it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.port = served.port
        self._healthy = Wire(served.port, "healthy")
        self._healthy.connect()
        self._healthy.subscribe("healthy", qos=1)
        self._rounds = 0
        self.round_trip()
        self.memory_before = self.memory

    @property
    def memory(self) -> int:
        return self.served.memory_bytes

    def round_trip(self) -> float:
        """Seconds from publishing to receiving."""
        self._rounds += 1
        begin_s = time.monotonic()
        self._healthy.publish("healthy", b"%d" % self._rounds, 1)
        assert self._healthy.receive().payload == b"%d" % self._rounds
        return time.monotonic() - begin_s

    def check(self) -> None:
        """As well as before: a round trip within a second, and the memory has come back."""
        self.round_trip()  # what is still on its way out may cost the first one something
        took_s = min(self.round_trip() for _ in range(3))
        assert took_s < ROUND_TRIP_S_MAX
        until_s = time.monotonic() + SETTLE_S_MAX
        while self.memory - self.memory_before > MEMORY_BYTES_MAX and time.monotonic() < until_s:
            self.round_trip()
        assert self.memory - self.memory_before <= MEMORY_BYTES_MAX
        with Wire(self.port, "newcomer") as newcomer:
            newcomer.connect()
            assert newcomer.settle() == []


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # children inherit it
    with Served(tmp_path_factory.mktemp("abused")) as broker:
        yield broker
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def patient(served: Served) -> Iterator[Patient]:
    one = Patient(served)
    yield one
    one.check()
