"""`penstock pub`: publish to an MQTT broker, with the options of mosquitto_pub."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from penstock.cli.mqtt.client import Outcome, Target, is_failure
from penstock.cli.mqtt.line import Line
from penstock.cli.mqtt.options import (
    add_connection,
    make_parser,
    number,
    read_properties,
    target,
)
from penstock.cli.mqtt.place import take_place
from penstock.cli.output import naming, show_json
from penstock.core.naming.names import check_name
from penstock.model.limits import KIB
from penstock.mqtt.endings import refused
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.properties import Properties

EXAMPLES: Final = """\
  penstock pub -t sensors/42/temp -m 21.5 -q 1
  tail -f log | penstock pub -t log -l -q 1     publish each line as a message
  penstock pub -t state -m on -r -q 1           retain the message for later subscribers
"""
CHUNK_BYTES: Final = 64 * KIB
CHUNKS_MAX: Final = 4  # read ahead of what was published
KEPT_S: Final = 300  # a session for QoS 2, after a connection was lost


def add_commands(commands: Any) -> None:
    usage = "-t NAME -m TEXT | -f FILE | -l | -s | -n [options]"
    parser = make_parser(commands, "pub", usage, EXAMPLES)
    parser.add_argument("-t", "--topic", metavar="NAME", help="topic name to publish to")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-m", "--message", metavar="TEXT", help="publish TEXT")
    source.add_argument("-f", "--file", metavar="FILE", help="publish the content of FILE")
    source.add_argument(
        "-n", "--null-message", action="store_true", help="publish an empty message"
    )
    source.add_argument(
        "-s", "--stdin-file", action="store_true", help="publish standard input as one message"
    )
    source.add_argument(
        "-l", "--stdin-line", action="store_true", help="publish each line of standard input"
    )
    parser.add_argument("-q", "--qos", type=number(0, 2), default=0, help="QoS: 0, 1 or 2 (0)")
    parser.add_argument("-r", "--retain", action="store_true", help="publish a retained message")
    parser.add_argument(
        "--repeat", type=number(1, 1 << 31), default=1, metavar="N", help="publish N times"
    )
    parser.add_argument(
        "--repeat-delay",
        type=float,
        default=0.0,
        metavar="S",
        help="wait S seconds between repeats",
    )
    add_connection(parser)
    parser.set_defaults(run=publish)


def publish(options: argparse.Namespace) -> None:
    take_place(options)
    if not options.topic:
        options.refuse_usage("the name is missing: give it with -t NAME")
    check_name(options.topic)
    where, forgets = _kept(options, target(options))
    properties = read_properties(options, "publish")
    messages = _lines() if options.stdin_line else _repeated(options, _message(options))

    async def run() -> int:
        line = Line(where, comes_back=not options.no_reconnect, is_quiet=options.quiet)
        is_clean = False
        try:
            await line.open()
            count = await _publish_all(line, options, messages, properties)
            is_clean = True
            return count
        except asyncio.CancelledError:  # Ctrl-C is no accident: the will stays unpublished
            is_clean = True
            raise
        finally:
            await line.close(is_clean=is_clean, forgets=forgets)

    count = asyncio.run(run())
    if options.json:
        show_json({"published": count, "name": options.topic, "qos": options.qos})


def _kept(options: argparse.Namespace, where: Target) -> tuple[Target, bool]:
    """At QoS 2 the session outlives a lost connection, so that nothing is stored twice.

    Whether it is ours to forget in the end.
    """
    connect = where.connect
    is_asked = connect.properties.session_expiry_interval is not None or not connect.clean_start
    if options.qos < 2 or options.no_reconnect or connect.version != MQTT_5 or is_asked:
        return where, False
    properties = replace(connect.properties, session_expiry_interval=KEPT_S)
    return replace(where, connect=replace(connect, properties=properties)), True


async def _publish_all(
    line: Line,
    options: argparse.Namespace,
    messages: AsyncIterator[bytes],
    properties: Properties,
) -> int:
    """Publish, and see to it that each was taken; how many."""
    waiting: set[asyncio.Future[Outcome]] = set()
    count = 0
    async for payload in messages:
        done = await line.publish(
            options.topic, payload, qos=options.qos, retain=options.retain, properties=properties
        )
        count += 1
        waiting.add(done)
        for one in [one for one in waiting if one.done()]:
            waiting.discard(one)
            _check(one.result())
    for one in waiting:
        _check(await line.wait_acknowledged(one))
    return count


def _check(outcome: Outcome) -> None:
    if is_failure(outcome.reason):
        raise refused("the server rejected the message:", outcome.reason, outcome.properties)


def _message(options: argparse.Namespace) -> bytes:
    if options.message is not None:
        return bytes(options.message.encode("utf-8", "surrogateescape"))
    if options.file is not None:
        with naming(f"--file {options.file!r} cannot be read"):
            return Path(options.file).read_bytes()
    return sys.stdin.buffer.read() if options.stdin_file else b""


async def _repeated(options: argparse.Namespace, payload: bytes) -> AsyncIterator[bytes]:
    for turn in range(options.repeat):
        if turn:
            await asyncio.sleep(options.repeat_delay)
        yield payload


async def _lines() -> AsyncIterator[bytes]:
    """Lines of standard input as they come, without their ends.

    Read by a thread that nobody waits for: a read from a terminal cannot be called off.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(CHUNKS_MAX)

    def read() -> None:
        data = b"\n"
        while data:
            data = os.read(sys.stdin.fileno(), CHUNK_BYTES)
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(data), loop).result()
            except RuntimeError:  # the loop is closed: the command is over
                return

    threading.Thread(target=read, name="penstock-stdin", daemon=True).start()
    rest = b""
    while data := await chunks.get():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest
