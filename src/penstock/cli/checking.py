"""`penstock pipeline check FILE`: whether a declared pipeline would run, and what it gives."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.output import Progress, counted, show_json
from penstock.cli.remote import add_remote, explained, job_place
from penstock.model.errors import NotAuthorized
from penstock.pipeline.packages import check_spark

if TYPE_CHECKING:
    from penstock.pipeline.jobs.sql.job import Checked


def add_check(actions: Any) -> None:
    parser = actions.add_parser("check", help="check a declared pipeline without running it")
    parser.add_argument("file", metavar="FILE", help="TOML file that declares the pipeline")
    add_remote(parser)
    parser.set_defaults(run=check_pipeline)


def check_pipeline(options: argparse.Namespace) -> None:
    check_spark()
    from penstock.pipeline.declared.reading import read_declaration
    from penstock.pipeline.jobs.sql.job import check

    declared = read_declaration(Path(options.file))
    place: Any = job_place(options)
    line = Progress("check")
    line.tell("starting Spark")
    try:
        parts = check(options.file, **place)
    except NotAuthorized as refused:
        raise explained(refused) from None
    finally:
        line.done()
    if options.json:
        show_json([asdict(part) for part in parts])
        return
    for part in parts:
        _show(part)
    count = len(declared.sinks)
    print(f"{declared.name} is valid: {counted(count, 'sink')}; nothing was started")


def _show(part: Checked) -> None:
    print(f"{part.kind} {part.name}")
    width = max(len(name) for name, _ in part.columns)
    for name, kind in part.columns:
        print(f"  {name:<{width}}  {kind}")
    print()
