"""The checkpoint of a declared pipeline: who uses it, and whether anything is left to do.

In the directory of each sink Spark notes the ends of a micro-batch in `offsets` before it runs, and
in `commits` that it is done. A scheduled pipeline mostly finds nothing new: that is read from these
files, without Spark. What cannot be understood here is left to Spark.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.model.errors import InvalidSetting, RefusedError, UnavailableError
from penstock.pipeline.declared.declaration import Declaration, TopicSource
from penstock.pipeline.declared.order import part_of
from penstock.pipeline.declared.topics import ends_of, options_of
from penstock.pipeline.source.offsets import Places, StreamOffset, stream_offset

LOCK_NAME: Final = ".lock"  # no sink is called so
DECLARED_NAME: Final = ".declared"  # the checksum of the file that was run last
_FORM: Final = "v1"  # of Spark's notes
_NO_OFFSET: Final = "-"  # of a source, in them
RESTARTS: Final = 2  # without records, until the steps over windows of other steps are done too


@contextmanager
def held_checkpoint(path: Path) -> Iterator[None]:
    """The checkpoint is ours: two drivers on one would overwrite each other's notes."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        opened = (path / LOCK_NAME).open("a")
    except OSError as failed:
        raise RefusedError(
            f"checkpoint {str(path)!r} cannot be used: {failed.strerror}"
        ) from failed
    with opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnavailableError(
                f"checkpoint {str(path)!r} is in use: this pipeline is already running"
            ) from None
        yield


def note_declared(declared: Declaration) -> None:
    """The pipeline ran to the end as its file is now."""
    (declared.checkpoint / DECLARED_NAME).write_text(_checksum(declared))


def offsets_if_done(declared: Declaration, reading: dict[str, str]) -> dict[str, int] | None:
    """The next offset of each topic if no query has anything left to do; None: ask Spark.

    A file that was changed since is left to Spark, which says what is wrong with it.
    """
    found: dict[str, int] = {}
    try:
        if (declared.checkpoint / DECLARED_NAME).read_text() != _checksum(declared):
            return None
        for sink in declared.sinks:
            ends = _ends_if_done(part_of(declared, sink), sink.name, reading)
            if ends is None:
                return None
            found |= {key: place.offset for key, place in ends.items()}
    except (OSError, ValueError, InvalidSetting):
        return None
    return dict(sorted(found.items()))


def _ends_if_done(part: Declaration, sink: str, reading: dict[str, str]) -> Places | None:
    """Where the topics of one query end now, if it has written all that follows from them."""
    noted = _last_offsets(part.checkpoint / sink)
    if noted is None:
        return None
    sources = [one for one in part.sources if isinstance(one, TopicSource)]
    has_windows = any(one.watermark_s is not None for one in sources)
    if has_windows and any(one.restarts < RESTARTS for one in noted):
        return None  # windows that became complete may not be written yet
    ends: Places = {}
    for source in sources:
        ends |= ends_of(reading | options_of(source))
    done = {topic for one in noted for topic in one.places}
    is_done = all(ends.get(topic) == at for one in noted for topic, at in one.places.items())
    return ends if is_done and done == set(ends) else None


def _last_offsets(query: Path) -> list[StreamOffset] | None:
    """Where the last micro-batch of a query ended in each source; None if it is not done."""
    numbers = [int(one.name) for one in (query / "offsets").iterdir() if one.name.isdigit()]
    last = str(max(numbers, default=-1))
    if not (query / "commits" / last).exists():
        return None
    form, _, *offsets = (query / "offsets" / last).read_text().splitlines()
    if form != _FORM or _NO_OFFSET in offsets:
        return None
    return [stream_offset(json.loads(one)) for one in offsets]


def _checksum(declared: Declaration) -> str:
    return hashlib.sha256(declared.file.read_bytes()).hexdigest()
