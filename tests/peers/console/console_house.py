"""A broker with a little of everything that the console shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Page

from penstock.catalog.reports import RunReport
from penstock.model.record import DEFAULT_TENANT
from penstock.model.runs import DONE, FAILED, RUNNING, PipelineRun, ScheduledJob
from penstock.mqtt.kinds import MQTT_5
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, kept
from tests.http.asking import Asking

MINUTE_US: Final = 60_000_000
SAMPLES: Final = 120  # ten minutes
POISON: Final = {"order": 17, "error": "no such article"}


def address(broker: Hosted) -> str:
    return f"http://127.0.0.1:{broker.ports['http']}/"


def go(page: Page, broker: Hosted, where: str) -> None:
    page.goto(f"{address(broker)}#/{where}")


@contextmanager
def furnished(data: Path) -> Iterator[Hosted]:
    """The broker, with clients that stay connected."""
    with ExitStack() as stack:
        broker = stack.enter_context(Hosted(data))
        asking = stack.enter_context(Asking(broker.ports["http"]))
        for topic in ("sensors", "orders", "alarms"):
            assert asking.ask("PUT", f"/v1/topics/{topic}", {}).status == 201
        asking.ask("POST", "/v1/bindings", {"filter": "plant/+/alarm", "topic": "alarms"})
        with Wire(broker.port, "archive", MQTT_5) as away:
            away.connect(properties=kept())
            away.subscribe("sensors/#", qos=1)
            away.disconnect()
        messages = [
            {
                "name": f"sensors/{at % 5}/temp",
                "payload": {"celsius": 15 + at},
                "headers": {"unit": "celsius"},
                "retain": at < 3,
            }
            for at in range(40)
        ]
        assert asking.ask("POST", "/v1/topics/sensors/records", messages).status == 200
        asking.ask("PUT", "/v1/topics/sensors/consumers/billing", {"from": "earliest"})
        asking.ask("PUT", "/v1/topics/sensors/consumers/charts", {"from": "latest"})
        asking.ask("POST", "/v1/topics/sensors/groups/workers/fetch", {"limit": 3})
        _bury(asking)
        for client_id, filter, qos in (
            ("dashboard", "sensors/#", 0),
            ("pager", "plant/+/alarm", 1),
            ("press-1", "$share/press/orders/#", 1),
        ):
            wire = stack.enter_context(Wire(broker.port, client_id))
            wire.connect()
            wire.subscribe(filter, qos=qos)
        _run_jobs(stack, broker, data)
        yield broker


def _bury(asking: Asking) -> None:
    """A record that no reader of the group could handle."""
    asking.ask("POST", "/v1/topics/orders/records", {"name": "orders/17", "payload": POISON})
    path = "/v1/topics/orders/groups/packers"
    for _ in range(5):
        given = asking.ask("POST", f"{path}/fetch", {"limit": 1}).json
        body = {"receipt": given["receipt"], "reason": "no such article"}
        assert asking.ask("POST", f"{path}/nack", body).status == 200


def _run_jobs(stack: ExitStack, broker: Hosted, data: Path) -> None:
    engine = broker.exchange.engine
    now_us = engine.clock.now_us()
    started_us = now_us - 42 * MINUTE_US
    runs = [
        PipelineRun(
            "archive-1", "archive", ["orders", "--to", "./archive"], DONE, started_us,
            started_us + MINUTE_US, started_us + MINUTE_US, 84_112, 9,
        ),
        PipelineRun(
            "clean-1", "clean", ["./archive", "--older-than", "30d"], FAILED,
            started_us + 9 * MINUTE_US, started_us + 10 * MINUTE_US, started_us + 10 * MINUTE_US,
            error="./archive is not a Delta table: run the job archive first",
        ),
        PipelineRun(
            "archive-2", "archive", ["sensors", "--to", "./archive"], RUNNING,
            now_us - 2 * MINUTE_US, now_us, 0, 61_500, 12, 18_200, {"sensors": 61_500},
        ),
    ]  # fmt: skip
    for run in runs:
        report = RunReport(data, run)
        if run.state == RUNNING:
            stack.enter_context(report)
        else:
            with report:
                pass
    arguments = ["./archive", "--older-than", "30d"]
    next_us = now_us + 30 * MINUTE_US
    engine.pipelines.schedule.append(ScheduledJob("clean", "clean", arguments, 86_400.0, next_us))


def enliven(broker: Hosted) -> None:
    """Ten minutes of samples in a moment: measured ones, of which only the times are spread."""
    samples = broker.http.tenants.get(DEFAULT_TENANT).world.samples
    with Wire(broker.port, "device-7") as device, Wire(broker.port, "wall") as wall:
        device.connect()
        wall.connect()
        wall.subscribe("sensors/#")
        for at in range(SAMPLES):
            count = round(6 + 4 * math.sin(at / 9) + 2 * math.sin(at / 2.3))
            for number in range(count):
                device.publish(f"sensors/{number % 5}/temp", b'{"celsius": %d}' % (15 + number), 1)
            wall.settle()
            broker.call(samples.take)
    now_us = broker.exchange.engine.clock.now_us()
    for at in range(SAMPLES):
        samples._times[-1 - at] = now_us - at * 5_000_000
