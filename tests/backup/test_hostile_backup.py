"""Does restoring a backup that somebody else made write only below its target, and end?"""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest

from penstock import Broker
from penstock.app.backup.archive import FRAME_BYTES
from penstock.app.backup.copying import open_source
from penstock.cli.main import main
from penstock.model.errors import CorruptError

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup directory with one moment of one topic."""
    with Broker(tmp_path / "data") as broker:
        broker.create_topic("orders")
        broker.publish("a message", "orders")
    assert main(["backup", str(tmp_path / "backup"), "--at", str(tmp_path / "data")]) == 0
    return tmp_path / "backup"


def manifest_of(backup: Path) -> Path:
    (path,) = backup.glob("moments/*/moment.json")
    return path


def outside(tmp_path: Path) -> set[Path]:
    """Everything that is neither in the backup nor in the target."""
    own = (tmp_path / "backup", tmp_path / "restored", tmp_path / "data")
    return {path for path in tmp_path.rglob("*") if not any(map(path.is_relative_to, own))}


def set_moment(key: str, value: object) -> Change:
    return lambda log: log["moment"].update({key: value})


def set_small(name: str) -> Change:
    return lambda log: log["small"].update({name: "evil"})


@pytest.mark.parametrize(
    "change",
    [
        set_small("../../../evil"),
        set_small("TMP/evil"),
        set_small("unknown.json"),
        set_moment("tenant", "../evil"),
        set_moment("tenant", "TMP/evil"),
        set_moment("directory", "../../evil-1"),
        set_moment("directory", "TMP/evil-1"),
        set_moment("directory", "evil"),
        set_moment("bases", []),
        set_moment("bases", [0, 1, 2]),
        set_moment("bases", [-1]),
        set_moment("epoch", 1 << 70),
        set_moment("position", -1),
        lambda log: log["segments"][0].update({"path": "../../secret"}),
        lambda log: log["segments"][0].update({"path": "/dev/zero"}),
    ],
)
def test_a_manifest_that_leads_out_of_the_target_or_contradicts_itself_restores_nothing(
    backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change
) -> None:
    path = manifest_of(backup)
    manifest = json.loads(path.read_bytes())
    change(manifest["logs"][0])
    path.write_text(json.dumps(manifest).replace("TMP", str(tmp_path)))
    before = outside(tmp_path)
    capsys.readouterr()
    assert main(["restore", str(backup), str(tmp_path / "restored")]) == 1
    told = capsys.readouterr().err
    assert "moment.json" in told and "Traceback" not in told
    assert outside(tmp_path) == before
    target = tmp_path / "restored"
    assert not target.exists() or not list(target.iterdir())


def test_a_file_without_an_end_is_read_only_as_far_as_the_manifest_says(
    backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (segment,) = backup.glob("segments/*/*/*.log")
    segment.unlink()
    segment.symlink_to("/dev/zero")
    assert main(["restore", str(backup), str(tmp_path / "restored")]) == 1
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    "body", [b"{" * 100_000, b'{"x":' * 100_000, b"\xff", b"", b'{"taken_at": 1e300}']
)
def test_a_manifest_that_cannot_be_read_is_named(
    backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], body: bytes
) -> None:
    manifest_of(backup).write_bytes(body)
    assert main(["restore", str(backup), str(tmp_path / "restored")]) == 1
    assert "moment.json is damaged" in capsys.readouterr().err


def seekable(path: Path, *frames: tuple[bytes, int]) -> None:
    """An archive of compressed frames, each with the length that its table claims."""
    entries = b"".join(struct.pack("<II", len(frame), length) for frame, length in frames)
    foot = struct.pack("<IBI", len(frames), 0, 0x8F92EAB1)
    head = struct.pack("<II", 0x184D2A5E, len(entries) + len(foot))
    path.write_bytes(b"".join(frame for frame, _ in frames) + head + entries + foot)


@pytest.mark.parametrize("claimed", [0, 512, FRAME_BYTES, FRAME_BYTES + 1, 1 << 30])
def test_a_frame_that_grows_beyond_its_table_is_refused(tmp_path: Path, claimed: int) -> None:
    bomb = bytes(cramjam.zstd.compress(bytes(64 * FRAME_BYTES)))
    archive = tmp_path / "bomb.tar.zst"
    seekable(archive, (bomb, claimed))
    with pytest.raises(CorruptError):
        open_source(archive)


def test_links_in_an_archive_read_nothing_outside_of_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret")
    content = io.BytesIO()
    with tarfile.TarFile(mode="w", fileobj=content) as tar:
        link = tarfile.TarInfo("moments/20260101T000000.000000Z/moment.json")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        tar.addfile(link)
    archive = tmp_path / "links.tar.zst"
    data = content.getvalue()
    seekable(archive, (bytes(cramjam.zstd.compress(data)), len(data)))
    source = open_source(archive)
    (moment,) = source.moments()
    with pytest.raises((CorruptError, FileNotFoundError, KeyError)):
        source.open(f"moments/{moment}/moment.json")
    source.close()
