"""Spark: topics as tables and streams, and the jobs that run on them.

`from penstock.pipeline import session` gives a local SparkSession in which `format("penstock")` is
known. Everything is imported when first asked for, so that tasks load only what they use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.pipeline.jobs.archive import archive
    from penstock.pipeline.jobs.clean import clean
    from penstock.pipeline.jobs.dispatch import dispatch
    from penstock.pipeline.jobs.replay import replay
    from penstock.pipeline.jobs.sql import check, sql
    from penstock.pipeline.jobs.stats import stats
    from penstock.pipeline.spark import session

__all__ = ["archive", "check", "clean", "dispatch", "replay", "session", "sql", "stats"]

_LATE = {
    "archive": "penstock.pipeline.jobs.archive",
    "check": "penstock.pipeline.jobs.sql",
    "clean": "penstock.pipeline.jobs.clean",
    "dispatch": "penstock.pipeline.jobs.dispatch",
    "replay": "penstock.pipeline.jobs.replay",
    "session": "penstock.pipeline.spark",
    "sql": "penstock.pipeline.jobs.sql",
    "stats": "penstock.pipeline.jobs.stats",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATE[name]), name)
    return value
