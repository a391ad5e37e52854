"""Kill -9 while records are erased: does the next start finish it, and is no byte of them left?"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock import Broker
from penstock.cli.main import main
from penstock.log.files.upkeep.ordered import ERASE_NAME
from penstock.model.record import KIND_ERASED
from tests.crash.test_kill import SEED
from tests.doors.deliver.test_mqtt_retained import retained
from tests.doors.served import Served
from tests.doors.wire import Wire

ROUNDS = int(os.environ.get("PENSTOCK_ROUNDS", "3"))  # 30 before a release
COUNT = 3_000
BEGIN_S_MAX = 30.0


def fill(data: Path, url: Path, chance: random.Random, marker: bytes) -> None:
    """Some records in the history only, some in both parts, some in the newest segment."""
    settings = {"segment_bytes": "64 KiB", "upkeep_s": 0.05, "history_url": str(url)}
    with Broker(data, **settings) as broker:
        broker.create_topic("orders", history=True, retention_bytes="512 KiB")
        for number in range(0, COUNT, 10):
            name = "orders/alice" if number % 30 == 0 else "orders/bob"
            batch = [marker + chance.randbytes(400) for _ in range(10)]
            if name.endswith("bob"):
                batch = [b"%d" % (number + n) + chance.randbytes(400) for n in range(10)]
            broker.publish_many(batch, "orders", name=name)
        deadline = time.monotonic() + BEGIN_S_MAX
        while True:
            (topic,) = broker.topics()
            if topic.history is not None and topic.history.end_offset > COUNT // 3:
                return
            assert time.monotonic() < deadline, topic
            time.sleep(0.05)


def files_with(root: Path, marker: bytes) -> list[str]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return sorted(str(path) for path in files if marker in path.read_bytes())


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_broker_that_was_killed_while_it_erased_finishes_at_its_next_start(
    tmp_path: Path,
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    for number in range(ROUNDS):
        root = tmp_path / str(number)
        data, url = root / "data", root / "history"
        marker = chance.randbytes(24)
        fill(data, url, chance, marker)
        assert files_with(data, marker) and files_with(url, marker)
        config = root / "penstock.toml"
        config.write_text(f'[history]\nurl = "{url}"\n[log]\nupkeep_every = "200ms"\n')
        kill_and_finish(data, config, marker, chance)
        assert files_with(root, marker) == []
        check_records(data, url)
        asked = ["log", "verify", "--history", "--at", str(data), "--url", str(url)]
        assert main(asked) == 0


def kill_and_finish(data: Path, config: Path, marker: bytes, chance: random.Random) -> None:
    order = data / "default" / "orders-1" / ERASE_NAME
    broker = Served(data, "--config", str(config)).start()
    with Wire(broker.port) as publisher:
        publisher.connect()
        publisher.publish("orders/alice", marker, 1, retain=True)
        publisher.publish("orders/bob", b"kept", 1, retain=True)
        publisher.settle()
    command = ["topic", "erase", "orders", "--names", "orders/alice", "--yes"]
    asking = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *command, "--at", str(data)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + BEGIN_S_MAX
    while not order.exists():
        assert time.monotonic() < deadline and asking.poll() is None, asking.poll()
    time.sleep(chance.random() * chance.choice([0.05, 0.5, 2.0]))  # anywhere in the middle
    broker.kill()
    asking.wait(BEGIN_S_MAX)
    broker.start()
    deadline = time.monotonic() + BEGIN_S_MAX
    while order.exists():
        assert time.monotonic() < deadline, "not finished"
        time.sleep(0.02)
    while not (found := retained(broker.port, "orders/#")):
        assert time.monotonic() < deadline, "nothing is retained"
    assert found == {"orders/bob": b"kept"}
    broker.stop()


def check_records(data: Path, url: Path) -> None:
    with Broker(data, history_url=str(url)) as broker:
        records = broker.read("orders", start=0)
    assert [one.offset for one in records] == list(range(COUNT + 2))
    for one in records:
        is_erased = one.name == "orders/alice"
        assert (one.kind == KIND_ERASED, not one.payload) == (is_erased, is_erased)
