"""`penstock serve` on a disk that takes its time: each sync lasts SYNC_S seconds longer."""

from __future__ import annotations

import os
import sys
import time

from penstock.cli.main import main
from penstock.log.files.disk import RealFile

SYNC_S = float(os.environ.get("SYNC_S", "0.5"))

_sync = RealFile.sync


def _slow_sync(file: RealFile) -> None:
    time.sleep(SYNC_S)
    _sync(file)


RealFile.sync = _slow_sync  # type: ignore[method-assign]
sys.exit(main())
