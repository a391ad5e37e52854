"""Spark: topics as tables and streams, and the jobs that run on them.

`from penstock.pipeline import session` gives a local SparkSession in which `format("penstock")` is
known. Everything is imported when first asked for, so that tasks load only what they use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.pipeline.delta.rows import read_delta
    from penstock.pipeline.jobs.archive.job import archive
    from penstock.pipeline.jobs.clean.job import clean
    from penstock.pipeline.jobs.dispatch.job import dispatch
    from penstock.pipeline.jobs.replay.job import replay
    from penstock.pipeline.jobs.sql.job import check, sql
    from penstock.pipeline.jobs.stats.job import stats
    from penstock.pipeline.spark import session
    from penstock.pipeline.tables.names import register
    from penstock.pipeline.tables.reading import table

__all__ = [
    "archive",
    "check",
    "clean",
    "dispatch",
    "read_delta",
    "register",
    "replay",
    "session",
    "sql",
    "stats",
    "table",
]

_LATE = {
    "archive": "penstock.pipeline.jobs.archive.job",
    "check": "penstock.pipeline.jobs.sql.job",
    "clean": "penstock.pipeline.jobs.clean.job",
    "dispatch": "penstock.pipeline.jobs.dispatch.job",
    "read_delta": "penstock.pipeline.delta.rows",
    "register": "penstock.pipeline.tables.names",
    "replay": "penstock.pipeline.jobs.replay.job",
    "session": "penstock.pipeline.spark",
    "sql": "penstock.pipeline.jobs.sql.job",
    "stats": "penstock.pipeline.jobs.stats.job",
    "table": "penstock.pipeline.tables.reading",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATE[name]), name)
    return value
