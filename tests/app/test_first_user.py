"""Does a new broker begin with the user that its settings name, and is the password told nobody?"""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from penstock.cli.main import main
from tests.doors.served import Served
from tests.http.asking import Asking

PASSWORD = "correct horse battery"


def settings_of(file: Path) -> dict[str, str]:
    return os.environ | {
        "PENSTOCK_ACCESS__FIRST_USER": "ada",
        "PENSTOCK_ACCESS__FIRST_PASSWORD_FILE": str(file),
    }


def test_the_first_user_is_added_once_as_administrator_and_its_password_is_not_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, data = tmp_path / "password", tmp_path / "data"
    file.write_text(f"{PASSWORD}\n")
    with Served(data, "--mqtt", "0.0.0.0:0", env=settings_of(file)) as served:  # users: allowed
        assert status_of(served, PASSWORD) == 200
        assert status_of(served, "wrong") == 401
        said = capfd.readouterr()
        main(["user", "show", "ada", "--at", str(data)])
        assert "admin" in capfd.readouterr().out
        main(["user", "passwd", "ada", "--at", str(data), "--password-file", str(other(tmp_path))])
    file.write_text("changed\n")
    with Served(data, env=settings_of(file)) as served:
        assert status_of(served, "another") == 200
    assert "the first user 'ada' was added" in said.err
    later = capfd.readouterr()
    assert PASSWORD not in said.out + said.err + later.out + later.err


def status_of(served: Served, password: str) -> int:
    login = b64encode(f"ada:{password}".encode()).decode()
    with Asking(served.http_port) as asking:
        return asking.ask("GET", "/v1/me", Authorization=f"Basic {login}").status


def other(tmp_path: Path) -> Path:
    (tmp_path / "other").write_text("another\n")
    return tmp_path / "other"


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"FIRST_USER": "ada"}, "[access] first_user needs first_password_file"),
        ({"FIRST_PASSWORD_FILE": "x"}, "[access] first_password_file needs first_user"),
        ({"FIRST_USER": "ada", "FIRST_PASSWORD_FILE": "missing"}, "'missing' cannot be read"),
        ({"FIRST_USER": "ada", "FIRST_PASSWORD_FILE": "/dev/null"}, "begins with an empty line"),
    ],
)
def test_a_first_user_that_cannot_be_added_stops_the_start(
    tmp_path: Path, variables: dict[str, str], problem: str
) -> None:
    env = os.environ | {f"PENSTOCK_ACCESS__{key}": value for key, value in variables.items()}
    ended = subprocess.run(
        [*(sys.executable, "-m", "penstock.cli.main", "serve"), "--mqtt", "off"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1 and problem in ended.stderr
    assert not (tmp_path / "penstock_data").exists()
