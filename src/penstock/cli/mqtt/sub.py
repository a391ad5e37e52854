"""`penstock sub`: show what an MQTT broker sends, with the options of mosquitto_sub."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from typing import Any, Final

from penstock.cli.mqtt.client import MqttClient, is_failure
from penstock.cli.mqtt.history import History, place_of
from penstock.cli.mqtt.line import Line
from penstock.cli.mqtt.options import (
    add_connection,
    make_parser,
    number,
    read_properties,
    target,
)
from penstock.cli.mqtt.place import take_place
from penstock.cli.mqtt.showing import make_show, show
from penstock.cli.output import EXIT_DONE, EXIT_UNAVAILABLE, UsageError
from penstock.cli.target import allow_negative_positions
from penstock.core.naming.names import check_filter, matches
from penstock.model.errors import UnavailableError
from penstock.mqtt.endings import refused
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Publish, Suback, Subscription, Unsuback

EXAMPLES: Final = """\
  penstock sub -t 'sensors/#' -v
  penstock sub -t 'sensors/#' -v --from -24h --where 'payload.celsius > 30'
  penstock sub -t jobs -q 1 -i worker -c        keep the session while disconnected
  penstock sub -t '$SYS/broker/clients/#' -v    show statistics of the broker
"""
NEVER: Final = 2  # retain handling: what was retained came with the first subscription


def add_commands(commands: Any) -> None:
    usage = "-t FILTER [--from POSITION] [--where EXPRESSION] [options]"
    parser = make_parser(commands, "sub", usage, EXAMPLES)
    allow_negative_positions(parser)
    add = parser.add_argument
    add(
        "-t",
        "--topic",
        action="append",
        default=[],
        metavar="FILTER",
        help="topic filter to subscribe to; repeatable",
    )
    add(
        "-T",
        "--filter-out",
        action="append",
        default=[],
        metavar="FILTER",
        help="do not show messages whose name matches FILTER; repeatable",
    )
    add("-q", "--qos", type=number(0, 2), default=0, help="highest QoS: 0, 1 or 2 (0)")
    add(
        "--from",
        dest="start",
        metavar="POSITION",
        help="show history from this position on: earliest, 123, -24h, or a time such as "
        "2026-01-02T03:04:05Z",
    )
    add("--where", metavar="EXPRESSION", help='show only matching records: "payload.celsius > 30"')
    add(
        "-U",
        "--unsubscribe",
        action="append",
        default=[],
        metavar="FILTER",
        help="remove this subscription from the session after connecting; repeatable",
    )
    add("-v", "--verbose", action="store_true", help="show the name before each message")
    add(
        "-F",
        "--format",
        metavar="FORMAT",
        help="output format such as '%%t %%p': %%t name, %%p payload, %%q QoS, %%r retained, "
        "%%l length, %%x hex, %%j JSON, %%I time of day; with --from or "
        "--where also %%T topic, %%o offset, %%w time when it was stored",
    )
    add("-C", "--count", type=number(1, 1 << 31), metavar="N", help="stop after N messages")
    add("-W", "--timeout", type=float, metavar="S", help="stop after S seconds")
    add("-N", "--no-newline", action="store_true", help="print no newline after a message")
    add("-R", "--no-stale", action="store_true", help="do not show retained messages")
    add("--retained-only", action="store_true", help="show only retained messages, then stop")
    add("-E", "--exit-after-subscribe", action="store_true", help="stop after subscribing")
    add_connection(parser)
    parser.set_defaults(run=subscribe)


class Wish:
    """A filter that is asked for."""

    def __init__(self, filter: str, history: History, identifier: int) -> None:
        self.filter = filter
        self.history = history
        self.identifier = identifier  # marks its messages; 0: it has no identifier


class Reading:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        take_place(options)
        for filter in (*options.topic, *options.filter_out, *options.unsubscribe):
            check_filter(filter)
        if not options.topic:
            options.refuse_usage("the filter is missing: give it with -t FILTER")
        self._options = options
        self._target = target(options)
        self._given = read_properties(options, "subscribe")
        self._show = make_show(options)
        self._wishes = self._make_wishes()
        self._left = options.count
        self._has_warned = False

    def _make_wishes(self) -> list[Wish]:
        options = self._options
        asks = options.start is not None or options.where is not None
        if asks and self._target.connect.version != MQTT_5:
            raise UsageError("--from and --where need MQTT 5: omit -V")
        is_alone = len(options.topic) == 1
        if asks and not is_alone and self._given.subscription_identifiers:
            raise UsageError(
                "--from and --where with several filters set the subscription identifiers "
                "themselves: omit -D subscribe subscription-identifier, or give one filter"
            )
        return [
            Wish(filter, History(options.start, options.where), 0 if is_alone else number)
            for number, filter in enumerate(options.topic, 1)
        ]

    @property
    def _asks(self) -> bool:
        return self._wishes[0].history.is_asked

    async def run(self) -> int:
        options = self._options
        line = Line(self._target, comes_back=not options.no_reconnect, is_quiet=options.quiet)
        is_clean = False
        try:
            async with asyncio.timeout(options.timeout):
                await self._read(line)
            is_clean = True
        except TimeoutError:
            is_clean = True
            # Somebody who asked for N messages did not get them.
            return EXIT_DONE if options.count is None else EXIT_UNAVAILABLE
        except asyncio.CancelledError:  # Ctrl-C is no accident: the will stays unpublished
            is_clean = True
            raise
        finally:
            await line.close(is_clean=is_clean)
        return EXIT_DONE

    async def _read(self, line: Line) -> None:
        client = await line.open()
        is_first = True
        while True:
            try:
                await self._subscribe(client, line, is_first=is_first)
                if not self._options.exit_after_subscribe:
                    await self._show_messages(client, line)
                return
            except UnavailableError as lost:
                client = await line.renew(lost)
                is_first = False

    # Subscribing

    async def _subscribe(self, client: MqttClient, line: Line, *, is_first: bool) -> None:
        if self._options.unsubscribe and is_first:
            await client.unsubscribe(tuple(self._options.unsubscribe))
        if not self._asks:
            wanted = tuple(Subscription(one.filter, self._options.qos) for one in self._wishes)
            self._check(await client.subscribe(wanted, self._given))
        elif is_first and client.is_session_present:
            line.note(
                "resuming the session where it was; --from and --where apply only to a new session"
            )
        else:
            for wish in self._wishes:
                await self._subscribe_feed(client, wish)

    async def _subscribe_feed(self, client: MqttClient, wish: Wish) -> None:
        history = wish.history
        given = self._given
        if wish.identifier:
            given = replace(given, subscription_identifiers=(wish.identifier,))
        handling = NEVER if history.has_begun else 0
        wanted = (Subscription(wish.filter, self._options.qos, retain_handling=handling),)
        answer = await client.subscribe(wanted, history.properties(given, by_offset=True))
        if is_failure(answer.reasons[0]) and history.is_under_way:  # several topics: the long way
            answer = await client.subscribe(wanted, history.properties(given, by_offset=False))
        self._check(answer, wish.filter)

    def _check(self, answer: Suback | Unsuback, *filters: str) -> None:
        for filter, reason in zip(filters or self._options.topic, answer.reasons, strict=False):
            if is_failure(reason):
                what = f"the server rejected the filter {filter!r}:"
                raise refused(what, reason, answer.properties)

    # Showing

    async def _show_messages(self, client: MqttClient, line: Line) -> None:
        """Show first, acknowledge then: what was not shown is sent again."""
        options = self._options
        async for message in client.messages():
            if options.retained_only and not message.retain:
                return
            if self._is_shown(message, line):
                show(self._show(message))
                self._left = self._left and self._left - 1
            client.acknowledge(message)
            if self._left == 0:
                return

    def _is_shown(self, message: Publish, line: Line) -> bool:
        options = self._options
        if options.no_stale and message.retain:
            return False
        if self._asks and not self._is_new(message, line):
            return False
        return not any(matches(filter, message.name) for filter in options.filter_out)

    def _is_new(self, message: Publish, line: Line) -> bool:
        if not place_of(message) and not self._has_warned:
            self._has_warned = True
            line.note("this broker does not support --from and --where: it sends only new messages")
        identifiers = message.properties.subscription_identifiers
        for wish in self._wishes:
            if wish.identifier == 0 or wish.identifier in identifiers:
                return wish.history.is_new(message)
        return True


def subscribe(options: argparse.Namespace) -> int:
    return asyncio.run(Reading(options).run())
