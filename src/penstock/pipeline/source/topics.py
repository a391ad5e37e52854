"""Which topics a data directory declares, read from its files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from penstock.core.naming.names import quoted, topic_key
from penstock.log.files.directory import check_has_files
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import find_logs, log_directory, read_facts
from penstock.log.interface import LogIdentity
from penstock.model.errors import RefusedError, TopicNotFound
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.pipeline.source.origin import nearest


class DirectoryTopics:
    """The topics of a tenant in a data directory; looked up anew each time.

    Spellings are remembered.
    """

    def __init__(self, path: Path, tenant: TenantId = DEFAULT_TENANT) -> None:
        self.path = path
        self.tenant = tenant
        self.disk = RealDisk()
        self._declared: dict[LogIdentity, str] = {}

    def all(self) -> dict[str, LogIdentity]:
        """By the key that letter case does not change."""
        if not self.path.is_dir():
            raise RefusedError(
                f"path {quoted(str(self.path))} is not a directory: give the broker's data "
                "directory"
            )
        check_has_files(self.path)
        if self.tenant != DEFAULT_TENANT and not (self.path / self.tenant).is_dir():
            raise RefusedError(
                f"{str(self.path)!r} has no topics of tenant {quoted(self.tenant)}: see "
                "`penstock tenant list`"
            )
        found = {}
        for identity in find_logs(self.disk, self.path):
            if identity.tenant == self.tenant:
                with suppress(FileNotFoundError):  # it has just been deleted
                    found[topic_key(self.name_of(identity))] = identity
        return found

    def find(self, topic: str) -> LogIdentity:
        """The topic of this name; TopicNotFound with the nearest one."""
        found = self.all()
        identity = found.get(topic_key(topic))
        if identity is None:
            raise TopicNotFound(self._missing(topic, found))
        return identity

    def name_of(self, identity: LogIdentity) -> str:
        """The topic as it was declared."""
        if identity not in self._declared:
            facts = read_facts(self.disk, self.directory_of(identity))
            self._declared[identity] = facts.topic
        return self._declared[identity]

    def directory_of(self, identity: LogIdentity) -> Path:
        return log_directory(self.path, identity)

    def _missing(self, topic: str, found: dict[str, LogIdentity]) -> str:
        known = [self.name_of(identity) for identity in found.values()]
        where = str(self.path if self.tenant == DEFAULT_TENANT else self.path / self.tenant)
        return f"topic {quoted(topic)} is not declared in {where!r}{nearest(topic, known)}"
