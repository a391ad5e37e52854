"""`penstock pipeline run|check|list|status`: jobs on Spark, and how they went."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from penstock.app.schedule import WITH_BROKER
from penstock.catalog.reports import read_reports
from penstock.cli.checking import add_check
from penstock.cli.output import Progress as Line
from penstock.cli.output import printable, show_json, show_table
from penstock.cli.remote import add_remote, explained, http_address, job_place
from penstock.cli.target import (
    add_target,
    allow_negative_positions,
    check_url,
    filled_path,
    open_broker,
)
from penstock.config import default_key, spark_master, storage_settings
from penstock.log.files.layout import tenant_root
from penstock.model.clock import SystemClock
from penstock.model.errors import NotAuthorized, PenstockError, RefusedError, UnavailableError
from penstock.model.record import DEFAULT_TENANT
from penstock.model.runs import PipelineRun
from penstock.pipeline.jobs import BY_ADDRESS, JOBS, Progress, find_job
from penstock.pipeline.packages import check_spark
from penstock.pipeline.recorder import Recorder, reason

NICENESS = 10  # of a job that the broker started: its clients go first


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("pipeline")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    running = actions.add_parser("run", help="run a job")
    jobs = running.add_subparsers(title="jobs", dest="job", metavar="JOB")
    for name in JOBS:
        job = find_job(name)
        one = jobs.add_parser(name, help=job.SAYS, description=job.SAYS)
        job.add_arguments(one)
        allow_negative_positions(one)
        one.add_argument(
            "--master",
            metavar="URL",
            default=None,
            help="master URL of Spark: a cluster, or sc://HOST:15002 (local[*])",
        )
        one.add_argument(WITH_BROKER, action="store_true", help=argparse.SUPPRESS)
        if name in BY_ADDRESS:
            add_remote(one)
        else:
            add_target(one)
        one.set_defaults(run=run_job)
    add_check(actions)
    listing = actions.add_parser("list", help="list all runs")
    listing.set_defaults(run=list_runs)
    shown = actions.add_parser("status", help="show a run")
    shown.add_argument("run_id", metavar="RUN", nargs="?", help="run to show (default: the newest)")
    shown.set_defaults(run=show_run)
    for action in (listing, shown):
        add_target(action)


def run_job(options: argparse.Namespace) -> None:
    check_spark()
    if getattr(options, "url", ""):  # of `replay`: the broker that receives
        check_url("--url", options.url)
    options.master = options.master or spark_master()
    is_remote = options.job in BY_ADDRESS and "://" in options.at
    data = None if is_remote else _reports(options)
    if options.job in BY_ADDRESS:
        options.place = job_place(options)
    options.storage = storage_settings()
    options.serving = partial(http_address, options.at)
    options.key = default_key()
    if options.with_broker:
        end_with_input()
    line = Line(options.job)
    shown = options.place["url"] if is_remote else options.at  # without a password
    arguments = [one.replace(options.at, shown) for one in options.typed[3:]]  # behind JOB
    with Recorder(data, options.job, arguments, SystemClock()) as recorder:

        def report(progress: Progress) -> None:
            recorder.tell(progress)
            line.tell(progress.words())

        line.tell("starting Spark")
        try:
            done = find_job(options.job).run(options, report)
        except NotAuthorized as refused:
            raise explained(refused) from None
        except (PenstockError, KeyboardInterrupt):
            raise
        except Exception as failed:
            raise RefusedError(f"{options.job} failed: {reason(failed)}") from failed
        finally:
            line.done()
        recorder.tell(done)
    if options.json:
        show_json(msgspec.to_builtins(recorder.run))
    else:
        print(f"{options.job}: {done.words()}")


def end_with_input() -> None:
    """End this process and its children when the process that holds its standard input ends."""

    def watch() -> None:
        # Not `sys.stdin`, whose lock the end of Python wants.
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGTERM)

    os.nice(NICENESS)
    threading.Thread(target=watch, name="penstock-parent", daemon=True).start()


def list_runs(options: argparse.Namespace) -> None:
    runs = _runs(options)
    if options.json:
        show_json([msgspec.to_builtins(run) for run in runs])
    elif not runs:
        print("no runs yet: start one with `penstock pipeline run JOB`")
    else:
        show_table(
            ["run", "state", "started", "rows", "batches", "lag"],
            [
                [run.run_id, run.state, _time(run.started_at), run.rows, run.batches, run.lag]
                for run in runs
            ],
        )


def show_run(options: argparse.Namespace) -> None:
    runs = _runs(options)
    if not runs:
        raise RefusedError("there are no runs yet: start one with `penstock pipeline run JOB`")
    found = [run for run in runs if options.run_id in (None, run.run_id)][-1:]
    if not found:
        raise RefusedError(
            f"there is no run {options.run_id!r}: `penstock pipeline list` lists all runs"
        )
    (run,) = found
    if options.json:
        show_json(msgspec.to_builtins(run))
        return
    facts = [
        ("run", run.run_id),
        ("arguments", " ".join(run.arguments)),
        ("state", run.state),
        ("error", run.error),
        ("started", _time(run.started_at)),
        ("updated", _time(run.updated_at)),
        ("rows", run.rows),
        ("batches", run.batches),
        ("lag", run.lag),
        *((f"offset in {topic}", offset) for topic, offset in run.offsets.items()),
    ]
    width = max(len(label) for label, _ in facts)
    for label, value in facts:
        if value != "":
            print(f"{label:<{width}}  {printable(str(value))}")


def _reports(options: argparse.Namespace) -> Path | None:
    """Where a run is recorded; not at all for a tenant without a directory."""
    root = tenant_root(filled_path(options), options.of_tenant or DEFAULT_TENANT)
    return root if root.is_dir() else None


def _runs(options: argparse.Namespace) -> list[PipelineRun]:
    """From the catalog; of a directory that a broker holds, what the newer runs report."""
    data = tenant_root(filled_path(options), options.of_tenant or DEFAULT_TENANT)
    try:
        with open_broker(options) as broker:
            return broker.pipeline_runs()
    except UnavailableError:
        return read_reports(data)


def _time(stamp_us: int) -> str:
    return datetime.fromtimestamp(stamp_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
