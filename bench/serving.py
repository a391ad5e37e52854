"""A broker process on a data directory, for those who know only its address."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STOP_S_MAX = 30.0


class Serving:
    """Runs until `stop`; `url` leads there."""

    def __init__(
        self, data: Path, *, mqtt: str = "off", environment: dict[str, str] | None = None
    ) -> None:
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(data)]
        self._child = subprocess.Popen(
            [*command, "--mqtt", mqtt, "--http", "127.0.0.1:0", "--log-level", "warning"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._child.stdout is not None
        self.url = ""
        for line in self._child.stdout:
            if line.startswith("listening") and "http://" in line:
                self.url = f"http://127.0.0.1:{line.rsplit(':', 1)[1].strip()}"
            if line.startswith("ready"):
                return
        raise RuntimeError(f"the broker ended with {self._child.wait()}")

    def stop(self) -> None:
        self._child.terminate()
        self._child.communicate(timeout=STOP_S_MAX)
