"""How far an archive has followed its topics, read from its Delta log without the Delta library.

A scheduled job mostly finds nothing new. Arrow, pandas and the library take half a second to
import, which is most of what such a run costs. What this reader does not understand it leaves to
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from penstock.pipeline.source.offsets import Place, Places
from penstock.pipeline.source.origin import TopicState
from penstock.pipeline.source.plan import place_at

# The columns of an archive, in their order.
COLUMNS: Final = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "name",
    "headers",
    "payload",
    "publisher",
    "expires_at",
    "date",
    "topic_id",
    "epoch",
)
COMMITS_MAX: Final = 2_000  # read here; the library has checkpoints for more
_LOG: Final = "_delta_log"
_DIGITS: Final = 20  # of a version in the name of its commit
_KINDS: Final = ("txn", "metaData", "protocol")
_PROTOCOL: Final = {"minReaderVersion": 1, "minWriterVersion": 2}  # what our tables ask for


def transactions(topic: str) -> tuple[str, str, str]:
    """Under which names a table keeps a topic's offset, id and epoch."""
    return f"penstock offset {topic}", f"penstock id {topic}", f"penstock epoch {topic}"


def places_if_all_followed(root: Path, states: Iterable[TopicState]) -> Places | None:
    """Where the archive ends in each topic if nothing is left to add; None: use the library."""
    versions = _versions(root)
    if versions is None:
        return None
    ends: Places = {}
    for state in states:
        offset, topic_id, epoch = map(versions.get, transactions(state.key))
        ends[state.key] = end = place_at(state, state.end)
        known = place_at(state, state.first)
        if offset is not None:
            known = Place(offset, topic_id or 0, epoch or 0)
        if known != end:
            return None
    return ends


def _versions(root: Path) -> dict[str, int] | None:
    """The transactions of an archive by name; None if its log cannot be read here."""
    try:
        actions = _actions(root / _LOG)
    except (OSError, ValueError):
        return None
    columns: list[str] = []
    versions: dict[str, int] = {}
    for action in actions:
        if "txn" in action:
            versions[action["txn"]["appId"]] = action["txn"]["version"]
        elif "metaData" in action:
            fields = json.loads(action["metaData"]["schemaString"])["fields"]
            columns = [field["name"] for field in fields]
        elif action["protocol"] != _PROTOCOL:
            return None
    return versions if columns == list(COLUMNS) else None


def _actions(log: Path) -> list[dict[str, Any]]:
    """The actions of all commits that say something about the table as a whole, oldest first.

    ValueError if commits are missing or too many.
    """
    commits = sorted(log.glob("*.json"))
    if not commits or len(commits) > COMMITS_MAX:
        raise ValueError("no commits, or many")
    if [one.stem for one in commits] != [f"{at:0{_DIGITS}}" for at in range(len(commits))]:
        raise ValueError("a checkpoint stands for the oldest commits")
    beginnings = tuple(f'{{"{kind}"'.encode() for kind in _KINDS)
    return [
        json.loads(line)
        for one in commits
        for line in one.read_bytes().splitlines()
        if line.startswith(beginnings)
    ]
