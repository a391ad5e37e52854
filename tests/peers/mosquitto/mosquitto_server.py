"""A Mosquitto broker on a free port, with settings of the test."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.doors.wire import WAIT_S
from tests.waiting import wait_until
from tools.peers import SEARCH


class Mosquitto:
    """Started, stopped or killed by its id."""

    def __init__(self, directory: Path, more: str = "", *, is_open: bool = True) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self._config = directory / "mosquitto.conf"
        self._config.write_text(
            f"user {getpass.getuser()}\n"  # root would become somebody who may not write here
            f"listener {self.port} 127.0.0.1\n"
            f"allow_anonymous {str(is_open).lower()}\n{more}"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        path = shutil.which("mosquitto", path=SEARCH)
        assert path is not None, "mosquitto is missing: make test-peers installs it"
        self._process = subprocess.Popen([path, "-c", str(self._config)], stderr=subprocess.DEVNULL)
        return self

    def wait_listening(self) -> None:
        def is_listening() -> bool:
            with socket.socket() as sock:
                return sock.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(is_listening)

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(WAIT_S)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(WAIT_S)

    def __enter__(self) -> Self:
        self.start().wait_listening()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
