"""Errors of Spark as one sentence, with the character of the SQL to which they belong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkException, QueryContextType
from pyspark.logger import PySparkLogger

from penstock.pipeline.declared.declaration import UPDATE, Sink, Step, TopicSink, TopicSource
from penstock.pipeline.declared.problems import nearest
from penstock.pipeline.declared.words import find_word

TEXT_CHARS_MAX: Final = 600
_CONDITION: Final = re.compile(r"^\[[A-Z_0-9.]+\]\s*")
_TRAILER: Final = re.compile(r"(?s)\s*(SQLSTATE: \w+|; line \d+ pos \d+|\n== SQL|;\n).*")
_POSITION: Final = re.compile(r"\bline (\d+),? pos(?:ition)? (\d+)")


@contextmanager
def quiet_errors() -> Iterator[None]:
    """PySpark logs each new error with pages of Java's stack: our messages replace them."""
    loggers = [
        PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")
    ]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was_disabled in zip(loggers, before, strict=True):
            logger.disabled = was_disabled


def explain(wrong: PySparkException, sql: str, known: list[str]) -> tuple[int, str]:
    """Where in its SQL something is wrong (an index), and what."""
    return _index(wrong, sql), _sentence(wrong, known)


def _index(wrong: PySparkException, sql: str) -> int:
    for context in wrong.getQueryContext():
        if context.contextType() is QueryContextType.SQL:
            return context.startIndex()
    found = _POSITION.search(str(wrong))
    if found is None:
        return 0
    lines = sql.split("\n")[: int(found[1]) - 1]
    return sum(len(line) + 1 for line in lines) + int(found[2])


def _sentence(wrong: PySparkException, known: list[str]) -> str:
    parameters = wrong.getMessageParameters() or {}
    if wrong.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        table = parameters.get("relationName", "").strip("`")
        return f"there is no source or step {table!r}: {nearest(table, known)}"
    if wrong.getCondition() == "UNRESOLVED_ROUTINE":
        routine = parameters.get("routineName", "").replace("`", "")
        return f"there is no function {routine!r}"
    return plain(str(wrong))


def plain(said: str) -> str:
    """The sentence in what Spark says, without its codes and plans."""
    text = _TRAILER.sub("", _CONDITION.sub("", said.strip()))
    return " ".join(text.split())[:TEXT_CHARS_MAX]


def explain_streaming(
    wrong: PySparkException, step: Step, sink: Sink, streams: list[TopicSource]
) -> tuple[int, str]:
    """Why a step cannot be streamed into a sink, and where in the step the reason is."""
    bare = [one.name for one in streams if one.watermark_s is None]
    group, join = find_word(step.sql, "group", "by"), find_word(step.sql, "join")
    if "watermark" not in str(wrong).lower() or not bare:
        said = f"step {step.name!r} cannot be written to sink {sink.name!r}: {plain(str(wrong))}"
        return group or join, said
    ways = f'add watermark = "1m" to {" and ".join(f"[sources.{name}]" for name in bare)}'
    if join and not group:
        return join, (
            f"step {step.name!r} joins streams without a watermark, so each row would have to "
            f"wait forever for a matching row: {ways}, and compare the times in ON"
        )
    if isinstance(sink, TopicSink):
        ways += (
            f', or mode = "{UPDATE}" to [sinks.{sink.name}], so that the sink receives every change'
        )
    return group, (
        f"step {step.name!r} groups a stream without a watermark, so no group is ever complete: "
        f"{ways}"
    )
