"""Does the bus do what seed 003 says, inside one process and between real ones?"""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import (
    AlreadySubscribed,
    Broker,
    Bus,
    NotSubscribed,
    RefusedError,
    TooLarge,
    UnavailableError,
)
from penstock.app.bus import WAITING_MAX, RemoteBus
from penstock.broker.bus import NOBODY
from penstock.core.bus import RING_MAX, join_id
from penstock.doors.bus.wire import CALL, PUBLISH, FrameReader, encode_frame
from penstock.model.errors import PeerError
from penstock.model.limits import PAYLOAD_BYTES_MAX
from tests.doors.served import Served
from tests.waiting import WAIT_S

SUBSCRIBER = """
import sys
from penstock import Bus
path, id = sys.argv[1], int(sys.argv[2])
bus = Bus.connect(path)
bus.subscribe(id, lambda id, data: print(id, data.decode(), flush=True))
print("ready", flush=True)
sys.stdin.read()
"""


class Heard:
    """A handler that remembers its calls."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()

    def __call__(self, id: int, data: bytes) -> None:
        self._calls.put((id, data))

    def next(self) -> tuple[int, bytes]:
        return self._calls.get(timeout=WAIT_S)

    @property
    def is_empty(self) -> bool:
        return self._calls.empty()


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus() as one:
        yield one


# In one process


def test_a_handler_is_called_with_id_and_data_in_the_order_of_publishing(bus: Bus) -> None:
    heard = Heard()
    bus.subscribe(7, heard)
    for number in range(100):
        bus.publish(7, b"%d" % number)
    assert [heard.next() for _ in range(100)] == [(7, b"%d" % n) for n in range(100)]


def test_group_zero_reaches_everybody_and_another_group_only_its_own(bus: Bus) -> None:
    heard = Heard()
    bus.subscribe(join_id(3, 7), heard)
    bus.publish(join_id(4, 7), b"not for us")
    bus.publish(join_id(3, 7), b"for group 3")
    bus.publish(join_id(0, 7), b"for all")
    assert heard.next() == (join_id(3, 7), b"for group 3")
    assert heard.next() == (7, b"for all")


def test_a_second_subscription_to_a_topic_is_refused_whatever_the_group(bus: Bus) -> None:
    bus.subscribe(join_id(1, 7), Heard())
    for group in (0, 1, 2):
        with pytest.raises(AlreadySubscribed, match="topic 7"):
            bus.subscribe(join_id(group, 7), Heard())
    with pytest.raises(RefusedError, match="is not a bus id"):
        bus.subscribe(65_536, Heard())
    with pytest.raises(RefusedError, match="is not a function"):
        bus.subscribe(8, "handler")  # type: ignore[arg-type]


def test_after_unsubscribing_the_handler_is_not_called(
    bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    heard, other = Heard(), Heard()
    bus.subscribe(7, heard)
    bus.unsubscribe(7)
    with pytest.raises(NotSubscribed):
        bus.unsubscribe(7)
    bus.subscribe(8, other)
    bus.publish(7, b"nobody")
    bus.publish(8, b"end")
    assert other.next() == (8, b"end")
    assert heard.is_empty
    assert NOBODY in capsys.readouterr().out


def test_a_handler_that_raises_harms_nobody(bus: Bus, capsys: pytest.CaptureFixture[str]) -> None:
    heard = Heard()

    def broken(id: int, data: bytes) -> None:
        raise ValueError("a mistake in a handler")

    bus.subscribe(7, broken)
    bus.subscribe(8, heard)
    bus.publish(7, b"x")
    bus.publish(8, b"y")
    assert heard.next() == (8, b"y")
    assert "a mistake in a handler" in capsys.readouterr().err


def test_publishing_never_runs_a_handler_and_a_handler_may_publish(bus: Bus) -> None:
    heard = Heard()

    def again(id: int, data: bytes) -> None:
        bus.publish(8, data + b"!")

    bus.subscribe(7, again)
    bus.subscribe(8, heard)
    bus.publish(7, b"hello")
    assert heard.next() == (8, b"hello!")


def test_messages_are_kept_in_the_topic_bus_and_other_doors_reach_group_zero(
    tmp_path: Path,
) -> None:
    heard = Heard()
    with Broker(tmp_path) as broker:
        with Bus(broker) as bus:
            bus.subscribe(join_id(9, 7), heard)
            bus.publish(join_id(9, 7), b"from the bus")
            assert heard.next()[1] == b"from the bus"
            broker.publish(b"from a program", "bus", name="bus/7")
            broker.publish(b"no bus id", "bus", name="bus/700")
            broker.publish(b"the end", "bus", name="bus/7")
            assert heard.next() == (7, b"from a program")
            assert heard.next() == (7, b"the end")
        records = broker.read("bus")
        (info,) = [topic for topic in broker.topics() if topic.topic == "bus"]
    assert [record.name for record in records] == ["bus/7", "bus/7", "bus/700", "bus/7"]
    assert info.durability == "os"


def test_closing_hands_out_what_was_published(tmp_path: Path) -> None:
    heard = Heard()
    bus = Bus()
    bus.subscribe(7, heard)
    for number in range(50):
        bus.publish(7, b"%d" % number)
    bus.close()
    bus.close()
    assert [heard.next()[1] for _ in range(50)] == [b"%d" % n for n in range(50)]
    with pytest.raises(UnavailableError, match="closed"):
        bus.publish(7, b"late")


def test_the_256th_message_that_waits_is_taken_and_the_next_refused(bus: Bus) -> None:
    taken = 0
    ring = bus._ring
    # Beside the loop, which would empty it at once.
    for _ in range(RING_MAX):
        ring._waiting.append((7, b"x"))
    with pytest.raises(RefusedError, match="256 messages wait"):
        bus.publish(7, b"one too many")
    taken = len(ring)
    assert taken == RING_MAX


def test_a_message_that_is_too_large_is_refused_and_stops_no_other(tmp_path: Path) -> None:
    heard = Heard()
    with Broker(tmp_path, payload_bytes_max="1 KiB") as broker:
        with Bus(broker) as bus:
            bus.subscribe(7, heard)
            bus.publish(7, b"before")
            with pytest.raises(TooLarge, match="at most 1024"):
                bus.publish(7, b"x" * 1_025)
            bus.publish(7, b"after")
            assert [heard.next()[1], heard.next()[1]] == [b"before", b"after"]
        assert [record.payload for record in broker.read("bus")] == [b"before", b"after"]


# Between processes


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Served, Path]]:
    path = tmp_path / "bus.socket"
    with Served(tmp_path / "data", "--bus", str(path)) as broker:
        yield broker, path


def subscriber(path: Path, id: int) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", SUBSCRIBER, str(path), str(id)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def end(*children: subprocess.Popen[str]) -> None:
    for child in children:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            pipe.close()


def test_handlers_run_in_the_processes_that_subscribed(served: tuple[Served, Path]) -> None:
    _, path = served
    red, blue = subscriber(path, join_id(1, 7)), subscriber(path, join_id(2, 7))
    try:
        with Bus.connect(path) as bus:
            bus.publish(join_id(1, 7), "only red")
            bus.publish(join_id(2, 7), "only blue")
            bus.publish(7, "both")
        assert [line(red), line(red)] == [f"{join_id(1, 7)} only red", "7 both"]
        assert [line(blue), line(blue)] == [f"{join_id(2, 7)} only blue", "7 both"]
    finally:
        end(red, blue)


def test_a_process_that_was_killed_is_unsubscribed(served: tuple[Served, Path]) -> None:
    broker, path = served
    child = subscriber(path, 7)
    end(child)
    with Bus.connect(path) as bus:
        bus.publish(7, "is anybody there?")
        assert any(NOBODY in text for text in broker.lines())


def test_refusals_of_the_broker_reach_the_process(served: tuple[Served, Path]) -> None:
    _, path = served
    with Bus.connect(path) as bus:
        bus.subscribe(7, Heard())
        with pytest.raises(AlreadySubscribed, match="unsubscribe first"):
            bus.subscribe(join_id(5, 7), Heard())
        with pytest.raises(NotSubscribed, match="has not subscribed"):
            bus.unsubscribe(8)
        with pytest.raises(RefusedError, match="is not a bus id"):
            bus.publish(-1, b"")
        with pytest.raises(TooLarge, match="too large"):
            bus.publish(7, b"x" * (PAYLOAD_BYTES_MAX + 1))


def publish_all(path: Path, id: int, count: int) -> None:
    """Wait for room whenever the ring is full."""
    with Bus.connect(path) as bus:
        for n in range(count):
            while True:
                try:
                    bus.publish(id, str(n))
                    break
                except RefusedError:
                    time.sleep(0.001)


def test_a_handler_publishes_however_many_calls_wait_for_it(served: tuple[Served, Path]) -> None:
    _, path = served
    count = WAITING_MAX + 2 * RING_MAX
    heard, all_out = Heard(), threading.Event()
    with Bus.connect(path) as busy, Bus.connect(path) as listener:

        def pass_on(id: int, data: bytes) -> None:
            assert all_out.wait(WAIT_S)
            while True:
                try:
                    return busy.publish(12, data)
                except RefusedError:
                    time.sleep(0.001)

        listener.subscribe(12, heard)
        busy.subscribe(11, pass_on)
        publish_all(path, 11, count)
        all_out.set()
        assert [heard.next() for _ in range(count)] == [(12, b"%d" % n) for n in range(count)]


def test_a_handler_may_unsubscribe_and_leave_while_calls_wait(served: tuple[Served, Path]) -> None:
    _, path = served
    left: queue.SimpleQueue[str] = queue.SimpleQueue()
    all_out = threading.Event()
    bus = Bus.connect(path)

    def leave(id: int, data: bytes) -> None:
        assert all_out.wait(WAIT_S)
        if data == b"0":
            bus.unsubscribe(id)
            bus.close()
            left.put("left")

    bus.subscribe(13, leave)
    publish_all(path, 13, WAITING_MAX + 2 * RING_MAX)
    all_out.set()
    assert left.get(timeout=WAIT_S) == "left"


def test_a_process_hears_that_its_broker_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "bus.socket"
    with Served(tmp_path / "data", "--bus", str(path)):
        bus: RemoteBus = Bus.connect(path)
        bus.publish(7, b"x")
    with pytest.raises(UnavailableError, match="connect again"):
        bus.publish(7, b"y")
    bus.close()
    assert not path.exists()
    with pytest.raises(UnavailableError, match="penstock serve --bus"):
        Bus.connect(path)


def test_bytes_that_are_no_frames_cost_only_their_own_connection(
    served: tuple[Served, Path],
) -> None:
    _, path = served
    heard = Heard()
    with (
        Bus.connect(path) as bus,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as hostile,
    ):
        bus.subscribe(7, heard)
        hostile.connect(str(path))
        hostile.settimeout(WAIT_S)
        hostile.sendall(b"\xff" * 100)
        assert hostile.recv(100) == b""
        bus.publish(7, b"still here")
        assert heard.next() == (7, b"still here")


def test_only_the_brokers_user_may_open_the_socket(served: tuple[Served, Path]) -> None:
    _, path = served
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("mine")
    flags = ["--data", str(tmp_path / "data"), "--mqtt", "off", "--http", "off", "--bus", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "serve", *flags],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 3
    assert "is not a socket" in done.stderr
    assert path.read_text() == "mine"


def test_frames_come_whole_however_they_are_cut() -> None:
    sent = encode_frame(PUBLISH, 7, b"hello") + encode_frame(CALL, 0xFFFF)
    reader = FrameReader()
    frames = [frame for at in range(len(sent)) for frame in reader.feed(sent[at : at + 1])]
    assert [tuple(frame) for frame in frames] == [(PUBLISH, 7, b"hello"), (CALL, 0xFFFF, b"")]
    with pytest.raises(PeerError):
        FrameReader().feed(b"\xff\xff\xff\xff\x01\x00\x07")
