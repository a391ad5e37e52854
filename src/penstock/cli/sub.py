"""`penstock sub`: show what an MQTT broker sends, with mosquitto_sub's letters."""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
from dataclasses import fields
from typing import Any

from penstock.cli.mqtt_client import MqttClient, is_failure, open_client, refused
from penstock.cli.mqtt_options import add_connection, make_parser, number, read_properties, target
from penstock.cli.output import EXIT_DONE, EXIT_UNAVAILABLE, show_json
from penstock.core.names import check_filter
from penstock.mqtt.packets import Publish, Subscription
from penstock.mqtt.properties import Properties


def add_commands(commands: Any) -> None:
    parser = make_parser(commands, "sub", "show messages from an MQTT broker")
    add = parser.add_argument
    add(
        "-t",
        "--topic",
        action="append",
        required=True,
        metavar="FILTER",
        help="what to read; may stand several times",
    )
    add("-q", "--qos", type=number(0, 2), default=0, help="highest QoS: 0, 1 or 2 (0)")
    add("-U", "--unsubscribe", action="append", default=[], metavar="FILTER", help="give it back")
    add("-v", "--verbose", action="store_true", help="names in front of messages")
    add("-C", "--count", type=number(1, 1 << 31), metavar="N", help="stop after N messages")
    add("-W", "--timeout", type=float, metavar="S", help="stop after so many seconds")
    add("-N", "--no-newline", action="store_true", help="no line end behind a message")
    add("-R", "--no-stale", action="store_true", help="leave out what was retained before")
    add("-E", "--exit-after-subscribe", action="store_true", help="stop once it is subscribed")
    add_connection(parser)
    parser.set_defaults(run=subscribe)


def subscribe(options: argparse.Namespace) -> int:
    for filter in (*options.topic, *options.unsubscribe):
        check_filter(filter)
    where = target(options)
    properties = read_properties(options, "subscribe")

    async def run() -> int:
        client = await open_client(where)
        try:
            async with asyncio.timeout(options.timeout):
                await _subscribe(client, options, properties)
                if not options.exit_after_subscribe:
                    await _show_messages(client, options)
        except TimeoutError:
            await client.stop()
            # Somebody who asked for N messages did not get them.
            return EXIT_DONE if options.count is None else EXIT_UNAVAILABLE
        except asyncio.CancelledError:  # Ctrl-C is no accident: the will stays unpublished
            await client.stop()
            raise
        except BaseException:
            await client.drop()
            raise
        await client.stop()
        return EXIT_DONE

    return asyncio.run(run())


async def _subscribe(
    client: MqttClient, options: argparse.Namespace, properties: Properties
) -> None:
    if options.unsubscribe:
        await client.unsubscribe(tuple(options.unsubscribe))
    wanted = tuple(Subscription(filter, options.qos) for filter in options.topic)
    reasons = await client.subscribe(wanted, properties)
    for filter, reason in zip(options.topic, reasons, strict=False):
        if is_failure(reason):
            raise refused(f"the server refused the filter {filter!r}:", reason)


async def _show_messages(client: MqttClient, options: argparse.Namespace) -> None:
    """Show first, acknowledge then: what was not shown is sent again."""
    left = options.count
    async for message in client.messages():
        if not (options.no_stale and message.retain):
            _show(message, options)
            left = left and left - 1
        client.acknowledge(message)
        if left == 0:
            return


def _show(message: Publish, options: argparse.Namespace) -> None:
    if options.json:
        show_json(_as_json(message))
        return
    head = f"{message.name} ".encode() if options.verbose else b""
    shown = message.payload
    if options.verbose and not shown:
        shown = b"(null)"
    sys.stdout.buffer.write(head + shown + (b"" if options.no_newline else b"\n"))
    sys.stdout.buffer.flush()


def _as_json(message: Publish) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": message.name, "qos": message.qos, "retain": message.retain}
    try:
        shown["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        shown["payload_base64"] = base64.b64encode(message.payload).decode()
    for field in fields(Properties):
        value = getattr(message.properties, field.name)
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        if value not in (None, ()):
            shown[field.name] = value
    return shown
