"""Where history tables are: `<url>/<tenant>/<slug>-<topic id>/`. Light: the broker imports it."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.log.interface import LogIdentity

S3: Final = "s3://"
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

    def place(self, identity: LogIdentity) -> TablePlace:
        path = f"{identity.tenant}/{identity.slug}-{identity.topic_id}"
        uri = f"{self.url.rstrip('/')}/{path}"
        return TablePlace(uri, _DEFAULTS | self.options if self.url.startswith(S3) else {})
