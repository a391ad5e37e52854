"""A subscriber in a process of its own, which says on a line of its output whenever 1,000 came.

`python -m bench.http.reader websocket|paho PORT TOPIC POSITION`. The first line says that it is
subscribed. Each kind is what a program would use: `websockets` with every record decoded from JSON,
or paho-mqtt with its callback. It ends when its input does.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

import msgspec

HOST: Final = "127.0.0.1"
STEP: Final = 1_000


class Line(msgspec.Struct):
    offset: int
    timestamp: int
    name: str
    payload: str


class Frame(msgspec.Struct):
    type: str
    next_offset: int
    records: list[Line] = []


class Progress:
    """Counts, and says every thousand."""

    def __init__(self) -> None:
        self._left = STEP

    def add(self, count: int) -> None:
        self._left -= count
        while self._left <= 0:
            self._left += STEP
            say("more")


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def read_websocket(port: int, topic: str, position: str) -> None:
    from websockets.sync.client import connect

    url = f"ws://{HOST}:{port}/v1/topics/{topic}/stream?from={position}"
    decode = msgspec.json.Decoder(Frame).decode
    progress = Progress()
    with connect(url, max_size=None, compression=None) as socket:
        assert decode(socket.recv(decode=False)).type == "start"
        say("ready")
        while True:
            progress.add(len(decode(socket.recv(decode=False)).records))


def read_paho(port: int, topic: str, position: str) -> None:
    from paho.mqtt.client import CallbackAPIVersion, Client

    progress = Progress()
    client = Client(CallbackAPIVersion.VERSION2, "bench-reader")
    client.on_message = lambda *_: progress.add(1)
    client.on_subscribe = lambda *_: say("ready")
    client.connect(HOST, port)
    client.subscribe(topic, 0)
    client.loop_forever()


def main() -> None:
    kind, port, topic, position = sys.argv[1:]
    read = {"websocket": read_websocket, "paho": read_paho}[kind]
    threading.Thread(target=read, args=(int(port), topic, position), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
