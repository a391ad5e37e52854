"""What is ordered of a log and not finished: the file erase.json in its directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.core.erasure import Erasure
from penstock.log.files.disk import Disk, write_file
from penstock.model.errors import CorruptError

ERASE_NAME: Final = "erase.json"


def write_erasures(disk: Disk, directory: Path, erasures: Sequence[Erasure]) -> None:
    """Durable on return. What was done before is durable first: an order ends behind its work."""
    path = directory / ERASE_NAME
    disk.sync_dir(directory)
    if erasures:
        write_file(disk, path, msgspec.json.encode(erasures) + b"\n")
    elif path.name in disk.list(directory):
        disk.remove(path)
        disk.sync_dir(directory)


def read_erasures(disk: Disk, directory: Path) -> Sequence[Erasure]:
    """CorruptError if the file is damaged."""
    path = directory / ERASE_NAME
    try:
        file = disk.open(path, write=False)
    except FileNotFoundError:
        return ()
    try:
        return msgspec.json.decode(file.read(0, file.size()), type=list[Erasure])
    except msgspec.DecodeError as broken:
        raise CorruptError(
            f"{path} is damaged ({broken}): remove it, and give the order to erase again"
        ) from broken
    finally:
        file.close()
