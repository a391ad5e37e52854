"""The newest records of a topic as one temporary Parquet file, so that Spark has a single scan."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from penstock.pipeline.source.origin import Wanted

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.pipeline.source.directory import DirectoryOrigin
    from penstock.pipeline.source.origin import Range

GROUP_ROWS: Final = 65_536  # so that a few tasks can share the file
_WRITING: Final[dict[str, Any]] = {
    "compression": "none",  # it is written once and read about once
    "use_dictionary": ["name", "publisher"],
}


def tail_file(origin: DirectoryOrigin, tail: Range, schema: pa.Schema) -> Path:
    """A file with the records of the range; Gap when some are gone. It stays until Python ends.

    The next call gets the same file, unless the log has been written or erased in since.
    """
    facts = repr((origin.version(tail.topic_id), tail, str(schema)))
    name = f"{hashlib.sha256(facts.encode()).hexdigest()}.parquet"
    path = _directory(os.getpid()) / name
    if path.exists():
        return path
    writing = path.with_suffix(".writing")
    with pq.ParquetWriter(writing, schema, **_WRITING) as writer:
        for batch in origin.scan(tail, Wanted(schema)):
            writer.write_batch(batch, row_group_size=GROUP_ROWS)
    writing.rename(path)
    return path


@lru_cache
def _directory(process: int) -> Path:
    """Of this process only, also after a fork: whoever ends first removes its own."""
    made = Path(tempfile.mkdtemp(prefix="penstock-tail-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
