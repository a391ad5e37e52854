"""What happens when connections use up the descriptors of the broker's process?

The limit of the running process is lowered with `prlimit`, which it notices at once.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.abuse.crowd import Crowd, Measured, reach
from tests.doors.served import Served
from tests.doors.wire import Wire
from tests.http.asking import Asking

GREEDY, HEALTHY = "127.0.0.2", "127.0.0.3"
LIMIT: Final = 256
NO_MORE: Final = 3  # standard input, output and error are open: nothing else can be opened


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, "--log-level", "error") as broker:
        yield broker


def set_limit(served: Served, limit: int) -> None:
    hard = resource.prlimit(served.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (limit, hard))


def cpu_s(served: Served) -> float:
    """Processor time that the broker has used."""
    fields = Path(f"/proc/{served.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def refused(client: Asking, reason: str) -> int:
    for line in client.ask("GET", "/metrics").body.decode().splitlines():
        if line.startswith(f'penstock_refused_total{{reason="{reason}"}}'):
            return int(line.rpartition(" ")[2])
    raise AssertionError(f"no such reason: {reason}")


def test_a_broker_starts_with_all_descriptors_that_the_system_allows(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 512), hard))
    try:
        with Served(tmp_path) as broker:
            assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_clients_that_use_all_descriptors_leave_files_and_health_checks_a_reserve(
    served: Served,
) -> None:
    set_limit(served, LIMIT)
    measured = Measured(served)
    with ExitStack() as stack, Asking(served.http_port) as admin:
        assert admin.ask("PUT", "/v1/topics/before", {}).status == 201
        inside = 0
        while inside < LIMIT:
            wire = Wire(served.port, f"c{inside}", sock=reach(served.port, GREEDY))
            stack.enter_context(wire)
            try:
                wire.connect()
            except (EOFError, ConnectionError):
                break
            inside += 1
        assert LIMIT // 2 < inside < LIMIT - LIMIT // 16
        for number in range(5):
            path = f"/v1/topics/t{number}"
            assert measured(lambda path=path: admin.ask("PUT", path, {})).status == 201  # type: ignore[misc]
        assert admin.ask("DELETE", "/v1/topics/before").status == 204
        with Asking(0, reach(served.http_port, HEALTHY)) as probe:
            assert measured(lambda: probe.ask("GET", "/healthz")).status == 200
        assert refused(admin, "descriptors") >= 1
    print(measured)


def test_silent_connections_give_way_before_the_reserve_is_used(served: Served) -> None:
    set_limit(served, LIMIT)
    with Crowd(GREEDY) as crowd:
        for _ in range(4):
            crowd.join(served.port, LIMIT // 2)
            with Wire(served.port, "healthy", sock=reach(served.port, HEALTHY)) as wire:
                wire.connect()
                wire.publish("x", b"served", 1)
            with Asking(0, reach(served.http_port, HEALTHY)) as client:
                assert client.ask("PUT", "/v1/topics/made", {}).status in (200, 201)
        assert crowd.count_open() > LIMIT // 2, "the attack is still under way"


def test_without_any_descriptor_nothing_is_half_done_and_nothing_is_lost(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with Served(tmp_path, "--log-level", "error") as broker:
        with Asking(broker.http_port) as client:
            for topic in ("kept", "doomed"):
                assert client.ask("PUT", f"/v1/topics/{topic}", {}).status == 201
            publish = ("POST", "/v1/topics/kept/records", b"one")
            assert client.ask(*publish, Content_Type="text/plain").status == 200
            set_limit(broker, NO_MORE)
            refusal = client.ask("PUT", "/v1/topics/new", {})
            assert refusal.status == 503 and "Too many open files" in refusal.detail
            assert refusal.headers["retry-after"]
            assert client.ask("DELETE", "/v1/topics/doomed").status == 204
            assert client.ask("GET", "/v1/topics/doomed").status == 404
            assert client.ask(*publish, Content_Type="text/plain").status == 200
            set_limit(broker, hard)
            assert client.ask("PUT", "/v1/topics/new", {}).status == 201
            assert client.ask("PUT", "/v1/topics/doomed", {}).status == 201, "made anew"
            assert client.ask("GET", "/v1/topics/doomed").json["end_offset"] == 0
        broker.stop()
        broker.start()
        with Asking(broker.http_port) as client:
            found = client.ask("GET", "/v1/topics").json["topics"]
            assert {topic["topic"]: topic["end_offset"] for topic in found} == {
                "kept": 2,
                "doomed": 0,
                "new": 0,
            }
            on_disk = [path for path in (tmp_path / "default").iterdir() if path.is_dir()]
            assert len(on_disk) == 3, "files of what was deleted or not created are gone"


def test_accepting_pauses_while_no_descriptor_is_left_and_goes_on_by_itself(
    served: Served,
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with Asking(served.http_port) as inside, ExitStack() as stack:
        assert inside.ask("GET", "/v1/topics").status == 200, "it is nobody who has to give way"
        set_limit(served, NO_MORE)
        waiting = [
            stack.enter_context(Asking(0, reach(served.http_port, GREEDY))) for _ in range(50)
        ]
        begin_s, begin_cpu_s = time.monotonic(), cpu_s(served)
        asked = 0
        while time.monotonic() < begin_s + 2:
            assert inside.ask("GET", "/healthz").status == 200, "who is inside is served on"
            asked += 1
            time.sleep(0.05)  # so that the broker is idle for most of the time
        used = (cpu_s(served) - begin_cpu_s) / (time.monotonic() - begin_s)
        print(f"{used:.0%} of a processor, {asked} requests answered")
        assert used < 0.5, "a broker that spins takes all of it"
        set_limit(served, hard)
        for one in waiting:
            assert one.ask("GET", "/healthz").status == 200
