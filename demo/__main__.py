"""`make demo`: from devices over MQTT through Spark and back, in about a minute and a half.

Everything happens in a temporary directory that is removed; a picture stays. Exit status 0 means
that all checks held, 1 that something failed, which is then said.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import penstock
from demo.commands import Command
from demo.devices import Boiler
from demo.listener import Listener
from demo.story import Failed, Story

BOILERS: Final = ("boiler-1", "boiler-2", "boiler-3", "boiler-4")
PIPELINE: Final = Path(__file__).with_name("pipeline.toml")
PICTURE: Final = "temperatures.png"
WINDOWS_MIN: Final = 2  # that must have come back, or there is nothing to show


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=45.0, help="for devices to publish (45)")
    parser.add_argument("--limit", type=float, default=130.0, help="seconds for all of it (130)")
    parser.add_argument("--to", type=Path, default=Path("demo_output"), help="for the picture")
    options = parser.parse_args(arguments)
    began_s = time.monotonic()
    story = Story()
    signal.signal(signal.SIGINT, story.interrupt)
    print(
        "Penstock: devices over MQTT -> a durable topic -> Spark -> a topic -> MQTT, and a table."
    )
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
            run = Demo(Path(directory), story, began_s + options.limit)
            run.play(options.seconds, options.to)
    except Failed as failed:
        print(f"\ndemo failed: {failed}", file=sys.stderr)
        for line in failed.details:
            print(f"   | {line}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo interrupted; everything it started is stopped", file=sys.stderr)
        return 130
    print(f"\ndone in {time.monotonic() - began_s:.0f} s; the temporary directory is removed")
    return 0


class Demo:
    """One run. `play` leaves no process and no thread behind, whatever happens."""

    def __init__(self, directory: Path, story: Story, deadline_s: float) -> None:
        self._directory = directory
        self._data = directory / "data"
        self._archive = directory / "archive"
        self._story = story
        self._deadline_s = deadline_s

    def play(self, seconds: float, output: Path) -> None:
        with ExitStack() as ending:
            broker, mqtt_port, url = self._start_broker(ending)
            with penstock.connect(url) as client:
                client.create_topic("sensors")
                client.create_topic("averages")
            boilers = self._start_devices(ending, mqtt_port)
            pipeline, listener = self._start_pipeline(ending, mqtt_port)
            self._watch(seconds, broker, pipeline, listener)
            sent = self._stop_devices(boilers)
            self._stop_pipeline(pipeline)
            self._archive_topic()
            self._compare(sent, listener.averages)
            self._draw(listener.averages, output)

    # The chapters

    def _start_broker(self, ending: ExitStack) -> tuple[Command, int, str]:
        self._story.chapter(
            "The broker",
            "One process, one directory. Every message is on disk before it is acknowledged.",
        )
        broker = self._command(
            *(ending, "serve", "--data", str(self._data)),
            *("--mqtt", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        )
        addresses = {}
        for line in broker.wait_for_line("ready", self._deadline_s):
            if line.startswith("listening"):
                address = line.split()[1]
                addresses[address.partition(":")[0]] = address
                self._story.line(f"listening on {address}")
        self._story.line(f"watch it in a browser: {addresses['http']}")
        return broker, int(addresses["mqtt"].rpartition(":")[2]), addresses["http"]

    def _start_devices(self, ending: ExitStack, port: int) -> list[Boiler]:
        self._story.chapter(
            "The devices",
            f"{len(BOILERS)} boilers, each an MQTT 5 client, publish their temperature five times "
            "a second at QoS 1. Topic `sensors` keeps all of it. One of them will overheat.",
        )
        boilers = []
        for name in BOILERS:
            boiler = Boiler(name, port, overheats=name == "boiler-3")
            ending.callback(boiler.close)
            boiler.start()
            boilers.append(boiler)
            self._story.line(f"{name} publishes sensors/{name}/temperature")
        return boilers

    def _start_pipeline(self, ending: ExitStack, port: int) -> tuple[Command, Listener]:
        self._story.chapter(
            "The pipeline",
            "A file declares it, Spark runs it: `penstock pipeline run sql pipeline.toml`. Spark "
            "takes some seconds to start; it will begin with the first message, so none is missed.",
        )
        file = self._directory / PIPELINE.name
        file.write_text(PIPELINE.read_text())
        for line in PIPELINE.read_text().splitlines():
            self._story.line(f"| {line}")
        listener = Listener(port, len(BOILERS), self._story.line)
        ending.callback(listener.close)
        at = ("--at", str(self._data))
        return self._command(ending, "pipeline", "run", "sql", str(file), *at), listener

    def _watch(self, seconds: float, broker: Command, pipeline: Command, heard: Listener) -> None:
        self._story.chapter(
            "What an MQTT subscriber sees",
            "It subscribes to averages/# and knows nothing of Spark. A window of 5 seconds is "
            "published once it is complete; '!' marks a mean above 80 °C. The first ones come when "
            "Spark is up, all that are complete by then at once and in any order.",
        )
        enough_s = time.monotonic() + seconds
        while time.monotonic() < enough_s or heard.windows < WINDOWS_MIN:
            self._story.check_interrupted()
            broker.check_running()
            pipeline.check_running()
            if time.monotonic() > self._deadline_s:
                raise Failed("no averages came back in time: this machine may be too busy")
            time.sleep(0.1)

    def _stop_devices(self, boilers: list[Boiler]) -> int:
        for boiler in boilers:
            boiler.stop()
        return sum(boiler.acknowledged for boiler in boilers)

    def _stop_pipeline(self, pipeline: Command) -> None:
        self._story.line("the devices stop, then the pipeline, with Ctrl-C:")
        pipeline.interrupt()
        for line in pipeline.wait_done(self._deadline_s):
            self._story.line(line)

    def _archive_topic(self) -> None:
        self._story.chapter(
            "The archive",
            "The same topic as a Delta table, by another job on Spark: `penstock pipeline run "
            "archive sensors --to ./archive`. pandas, Polars, DuckDB and Spark read it.",
        )
        arguments = ("archive", "sensors", "--to", str(self._archive), "--at", str(self._data))
        with ExitStack() as ending:
            command = self._command(ending, "pipeline", "run", *arguments)
            for line in command.wait_done(self._deadline_s):
                self._story.line(line)

    def _compare(self, sent: int, averages: list[dict[str, Any]]) -> None:
        self._story.chapter(
            "Does it add up?",
            "Every acknowledged message must be in the table exactly once, and every average that "
            "came back over MQTT must be the average of the readings in the table. (The newest "
            "windows were not complete when the pipeline was stopped.)",
        )
        readings = self._readings()
        if len(readings) != sent:
            raise Failed(f"{sent} messages were acknowledged and {len(readings)} are archived")
        self._story.line(f"{sent:,} messages acknowledged, {len(readings):,} rows in the table")
        wanted = readings.groupby(["device", readings["timestamp"].dt.floor("5s")])["celsius"]
        known = {key: (len(own), own.mean()) for key, own in wanted}
        for average in averages:
            key = (average["device"], _time(average["since"]))
            count, mean = known.get(key, (0, 0.0))
            if average["readings"] != count or abs(average["celsius"] - mean) > 0.006:
                raise Failed(f"{average} came back, and the table says {count} and {mean:.2f}")
        pairs = {(one["device"], one["since"]) for one in averages}
        if len(pairs) != len(averages):
            raise Failed(f"{len(averages)} averages came back, {len(pairs)} different ones")
        self._story.line(f"{len(averages)} averages came back over MQTT, all of them right")

    def _draw(self, averages: list[dict[str, Any]], output: Path) -> None:
        from demo.picture import draw

        output.mkdir(parents=True, exist_ok=True)
        draw(self._readings(), averages, output / PICTURE)
        self._story.chapter("A picture", f"Have a look: {output / PICTURE}")

    # Parts

    def _command(self, ending: ExitStack, *arguments: str) -> Command:
        log = self._directory / f"{'-'.join(arguments[:3]).replace('/', '_')[:40]}.log"
        command = Command(log, *arguments)
        ending.callback(command.stop)
        return command

    def _readings(self) -> Any:
        import json

        from deltalake import DeltaTable

        table = DeltaTable(str(self._archive)).to_pandas(columns=["timestamp", "payload"])
        values = [json.loads(payload) for payload in table["payload"]]
        table["device"] = [value["device"] for value in values]
        table["celsius"] = [value["celsius"] for value in values]
        return table.sort_values("timestamp")


def _time(text: str) -> Any:
    import pandas as pd

    return pd.Timestamp(text)


if __name__ == "__main__":
    sys.exit(main())
