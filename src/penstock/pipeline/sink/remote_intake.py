"""Implements `Intake` on a running broker, over HTTP.

Whatever is sent here may be sent again: a file that is staged twice counts once, and so does what
is handed over twice. So a broker that restarts in between is waited for.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec

from penstock.log.format.batch import Batch
from penstock.log.staging.area import StagedFile, mark_key
from penstock.model.errors import PenstockError
from penstock.model.limits import MIB
from penstock.model.record import TopicInfo
from penstock.pipeline.link import ANSWER_S_MAX, BrokerLink, topic_path
from penstock.pipeline.sink.intake import FoundTopic, Staging

FILE_BYTES: Final = 8 * MIB  # a file is sent once it has as many
HANDOVER_S_MAX: Final = 600.0  # for an answer: all that was staged is copied into its logs
PATIENCE_S: Final = 30.0  # with a broker that is not there: it may be starting again

STAGED: Final = "/v1/staged"
_BINARY: Final = {"Content-Type": "application/octet-stream"}
_JSON: Final = {"Content-Type": "application/json"}


class _HandedOver(msgspec.Struct):
    is_new: bool


class RemoteIntake:
    """The topics of the broker at an address."""

    def __init__(self, link: BrokerLink, patience_s: float = 0.0) -> None:
        self._link = link
        self._patience_s = patience_s  # with a broker that is not there at the beginning

    def find(self, topic: str) -> FoundTopic:
        answer = self._link.ask("GET", topic_path(topic), patience_s=self._patience_s)
        found = msgspec.json.decode(bytes(answer.body), type=TopicInfo)
        return FoundTopic(found.topic, found.id, len(found.partitions) or 1)

    def stage(self, source: str, number: int, part: str, topic_id: int) -> Staging:
        return _SentFiles(self._link, source, number, part, topic_id)

    def discard(self, source: str, files: list[StagedFile]) -> None:
        """The broker forgets by itself, after a week, what it cannot be told to forget."""
        if files:
            with suppress(PenstockError):
                self._post("discard", {"source": source, "files": files})

    def hand_over(
        self, source: str, number: int, files: list[StagedFile], *, is_only: bool
    ) -> bool:
        asked = {"source": source, "number": number, "files": files, "is_only": is_only}
        answer = self._post("handover", asked, HANDOVER_S_MAX, PATIENCE_S)
        return msgspec.json.decode(answer, type=_HandedOver).is_new

    def _post(
        self, what: str, asked: Any, answer_s: float = ANSWER_S_MAX, patience_s: float = 0.0
    ) -> bytes:
        answer = self._link.ask(
            "POST",
            f"{STAGED}/{what}",
            body=msgspec.json.encode(asked),
            headers=_JSON,
            answer_s=answer_s,
            patience_s=patience_s,
        )
        return bytes(answer.body)


class _SentFiles:
    """Implements `Staging`: batches leave in files that fit into a request."""

    def __init__(
        self, link: BrokerLink, source: str, number: int, part: str, topic_id: int
    ) -> None:
        self._link = link
        self._source = source
        self._number = number
        self._part = part
        self._topic_id = topic_id
        self._files: list[StagedFile] = []
        self._held: list[bytes | memoryview] = []
        self._held_bytes = 0
        self._batches = 0  # of those that are held

    def next_key(self) -> bytes:
        return mark_key(self._source, self._number, self._file_part, self._batches)

    @property
    def _file_part(self) -> str:
        return f"{self._part}-{len(self._files)}"

    def add(self, batch: Batch) -> None:
        buffers = batch.to_bytes()
        self._held += buffers
        self._held_bytes += sum(map(len, buffers))
        self._batches += 1
        if self._held_bytes >= FILE_BYTES:
            self._send()

    def finish(self) -> list[StagedFile]:
        if self._held:
            self._send()
        return self._files

    def give_up(self) -> list[StagedFile]:
        return self._files

    def _send(self) -> None:
        query = {
            "source": self._source,
            "number": str(self._number),
            "part": self._file_part,
            "topic_id": str(self._topic_id),
        }
        answer = self._link.ask(
            "POST", STAGED, query, b"".join(self._held), _BINARY, patience_s=PATIENCE_S
        )
        self._files.append(msgspec.json.decode(bytes(answer.body), type=StagedFile))
        self._held, self._held_bytes, self._batches = [], 0, 0
