"""Where logs lie in a data directory, `<data>/<tenant>/<slug>-<topic id>/`, and their names.

Light: readers of files import it without anything that writes them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from penstock.log.files.disk import Disk
from penstock.log.format.checksum import crc32c
from penstock.log.interface import LogIdentity, LogSettings
from penstock.model.errors import CorruptError
from penstock.model.record import DEFAULT_TENANT

FACTS_NAME: Final = "topic.json"
AREA: Final = ".staged"  # in a tenant's root; no log's name begins with a dot
_CHECKSUM: Final = re.compile(rb',\n  "checksum": "([0-9a-f]{8})"\n}\n\Z')
LOG_DIRECTORY: Final = re.compile(r"(?P<slug>.+)-(?P<id>[0-9]+)\Z")


def log_directory(root: Path, identity: LogIdentity) -> Path:
    return root / identity.tenant / f"{identity.slug}-{identity.topic_id}"


def tenant_root(data: Path, tenant: str) -> Path:
    """Where a tenant's staged files and reports of runs lie: the default one's beside the logs."""
    return data if tenant == DEFAULT_TENANT else data / tenant


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


class _UncheckedFacts(TopicFacts, forbid_unknown_fields=True):
    """As earlier versions wrote it: without a checksum, and without anything unknown."""


def encode_facts(facts: TopicFacts) -> bytes:
    """The content of topic.json; its last key is a checksum of everything in front of it."""
    told = msgspec.to_builtins(facts)
    settings = told["settings"]
    for key, unset in (("history", False), ("history_age_s", None), ("partitions", 1)):
        if settings[key] == unset:  # as versions wrote it that did not know them
            del settings[key]
    text = msgspec.json.format(msgspec.json.encode(told)).removesuffix(b"\n}")
    return text + b',\n  "checksum": "%08x"\n}\n' % crc32c(text)


def decode_facts(data: bytes) -> TopicFacts:
    """The opposite; CorruptError when it is damaged."""
    checksum = _CHECKSUM.search(data)
    try:
        if checksum is None:
            earlier = msgspec.json.decode(data, type=_UncheckedFacts)
            return TopicFacts(earlier.topic, earlier.settings)
        if crc32c(data[: checksum.start()]) != int(checksum[1], 16):
            raise CorruptError("the checksum is wrong")
        return msgspec.json.decode(data, type=TopicFacts)
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:
        raise CorruptError(str(broken)) from broken


def read_facts(disk: Disk, directory: Path) -> TopicFacts:
    """What topic.json says; CorruptError when it is damaged."""
    path = directory / FACTS_NAME
    file = disk.open(path, write=False)
    try:
        return decode_facts(file.read(0, file.size()))
    except CorruptError as broken:
        raise CorruptError(
            f"{path} is damaged ({broken}): restore it from a backup, or let the broker write it "
            "again: `penstock topic alter` with any setting"
        ) from broken
    finally:
        file.close()
