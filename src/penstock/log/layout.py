"""Where logs lie in a data directory, `<data>/<tenant>/<slug>-<topic id>/`, and their names.

Light: readers of files import it without anything that writes them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from penstock.log.files import Disk
from penstock.log.interface import LogIdentity, LogSettings
from penstock.model.errors import CorruptError

FACTS_NAME: Final = "topic.json"
LOG_DIRECTORY: Final = re.compile(r"(?P<slug>.+)-(?P<id>[0-9]+)\Z")


def log_directory(root: Path, identity: LogIdentity) -> Path:
    return root / identity.tenant / f"{identity.slug}-{identity.topic_id}"


def find_logs(disk: Disk, root: Path) -> list[LogIdentity]:
    """The logs below a data directory: whatever holds the file topic.json."""
    found = []
    for tenant in disk.list(root):
        for name in disk.list(root / tenant):
            match = LOG_DIRECTORY.match(name)
            if match and FACTS_NAME in disk.list(root / tenant / name):
                found.append(LogIdentity(tenant, int(match["id"]), match["slug"]))
    return found


class TopicFacts(msgspec.Struct):
    """The file topic.json: what the log is called and how it is kept."""

    topic: str
    settings: LogSettings


def read_facts(disk: Disk, directory: Path) -> TopicFacts:
    """What topic.json says; CorruptError when it cannot be read."""
    path = directory / FACTS_NAME
    file = disk.open(path, write=False)
    try:
        return msgspec.json.decode(file.read(0, file.size()), type=TopicFacts)
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:
        raise CorruptError(f"{path}: {broken}: restore the file from a backup") from broken
    finally:
        file.close()
