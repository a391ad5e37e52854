"""Where history tables are: `<url>/<tenant>/<slug>-<topic id>/`. Light: the broker imports it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from penstock.log.files.disk import Disk, write_file
from penstock.log.interface import LogIdentity
from penstock.model.errors import CorruptError

S3: Final = "s3://"
ROOT_NAME: Final = "histories.json"  # in a data directory
# An upkeep round that waits is tried again; a store that is away should not hold it for minutes.
_DEFAULTS: Final = {"timeout": "30s", "connect_timeout": "5s", "max_retries": "4"}


class TablePlace(msgspec.Struct, frozen=True):
    """One table: a directory, or a prefix of an object store and how to reach it."""

    uri: str
    options: dict[str, str] = {}

    @property
    def is_directory(self) -> bool:
        return not self.uri.startswith(S3)


class HistoryRoot(msgspec.Struct, frozen=True):
    """Where all tables of a broker are: `[history] url` and `[history.options]`."""

    url: str
    options: dict[str, str] = {}

    @property
    def is_directory(self) -> bool:
        return not self.url.startswith(S3)

    @property
    def place_options(self) -> dict[str, str]:
        """Those of every table."""
        return {} if self.is_directory else _DEFAULTS | self.options

    def place(self, identity: LogIdentity) -> TablePlace:
        return self.table(f"{identity.tenant}/{identity.slug}-{identity.topic_id}")

    def table(self, path: str) -> TablePlace:
        """The table at `tenant/slug-id`."""
        return TablePlace(f"{self.url.rstrip('/')}/{path}", self.place_options)


def history_root(url: str, options: dict[str, str]) -> HistoryRoot:
    """A root as settings give it; a relative directory is relative to where we are now."""
    return HistoryRoot(url if url.startswith(S3) else str(Path(url).absolute()), options)


def note_root(disk: Disk, data: Path, root: HistoryRoot) -> None:
    """Write down in a data directory where its histories are, for those who read its files.

    Without options: they may hold secrets, which readers have in their own environment.
    """
    write_file(disk, data / ROOT_NAME, msgspec.json.encode(HistoryRoot(root.url)))


def read_root(data: Path) -> HistoryRoot | None:
    """Where the histories of a data directory are; None if it has none."""
    try:
        return msgspec.json.decode((data / ROOT_NAME).read_bytes(), type=HistoryRoot)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as broken:
        raise CorruptError(
            f"{data / ROOT_NAME} is damaged ({broken}): start the broker, which writes it again"
        ) from broken
