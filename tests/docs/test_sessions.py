"""Do the commands of the documentation work as pasted, and answer as shown?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

import penstock
from penstock import Broker, OutcomeUnknown, UnavailableError
from tests.docs.shown import Block, all_blocks, find
from tests.doors.certificates import Authority
from tests.doors.served import Served
from tools import stranger

BIN = Path(sys.executable).parent
GAP = "…"
HTTP_SESSION = [one for one in all_blocks() if (one.page, one.language) == ("HTTP.md", "console")]
ENDLESS = "/stream?"  # curl follows it until it is stopped
Shell = Callable[..., str]


class Reading(msgspec.Struct):
    """What the handler on the page about Python takes."""

    celsius: float


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs a line as a person would, in a directory and a home of its own; what it printed."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for name in ("PENSTOCK_AT", "PENSTOCK_CONTEXT", "XDG_CONFIG_HOME"):
        environment.pop(name, None)

    def run(line: str, stdin: str = "", code: int = 0) -> str:
        ended = subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == code, f"{line}: {ended.stdout} {ended.stderr}"
        return ended.stdout

    return run


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "penstock_data") as served:
        yield served


def users(shell: Shell, block: Block, tmp_path: Path) -> None:
    (tmp_path / "pump.txt").write_text("secret\n")
    for line in block.lines:
        if "key revoke" in line:
            (key, *_) = json.loads(shell("penstock key list --json"))
            line = line.replace("3f2a61c09b", key["key_id"])
        shell(line, stdin="a new secret\n")


def rules(shell: Shell, block: Block, tmp_path: Path) -> None:
    for name in ("pump", "bob"):
        shell(f"penstock user add {name}", stdin="secret\n")
    for line in block.lines:
        command, _, said = line.partition("  #")
        is_denied = said.strip().startswith("denied")
        printed = shell(command, code=int(is_denied))
        if "access check" in command:
            assert said.strip() in printed


def tenants(shell: Shell, block: Block, tmp_path: Path) -> None:
    *lines, last = block.lines
    for line in lines:
        shell(line, stdin="secret\n")
    shell(last, code=1)  # it has a topic and a user
    shell(f"{last.partition('#')[0]} --purge")


def checked(shell: Shell, block: Block, tmp_path: Path) -> None:
    """`penstock serve` with --check: it would use the ports of a broker that may run here."""
    authority = Authority(tmp_path, "ca")
    cert, key = authority.sign("server")
    cert.rename(tmp_path / "chain.pem")
    key.rename(tmp_path / "key.pem")
    for line in block.lines:
        command = line.partition("  #")[0]
        if "penstock serve" in command and "--check" not in command:
            command += " --check"
        shell(command)


def erasing(shell: Shell, block: Block, tmp_path: Path) -> None:
    with Broker(tmp_path / "penstock_data") as broker:
        broker.create_topic("orders")
        broker.publish("1", "orders", name="orders/customers/4711/street")
    for line in block.lines:
        shell(line if "--dry-run" in line else f"{line} --yes")


def completion(shell: Shell, block: Block, tmp_path: Path) -> None:
    for line in block.lines:
        target = Path(line.partition(">")[2].split()[0].replace("~", str(tmp_path)))
        target.parent.mkdir(parents=True, exist_ok=True)
        shell(line)
        assert "penstock" in target.read_text()


COMMAND_BLOCKS = {
    ("OPERATIONS.md", "penstock serve    "): checked,
    ("OPERATIONS.md", "penstock config init"): checked,
    ("OPERATIONS.md", "penstock serve --mqtts"): checked,
    ("QUICKSTART.md", "penstock serve"): checked,
    ("OPERATIONS.md", "penstock user add alice"): users,
    ("SECURITY.md", "penstock role add sensor"): rules,
    ("OPERATIONS.md", "penstock tenant add acme"): tenants,
    ("OPERATIONS.md", "penstock topic erase"): erasing,
    ("CLI.md", "penstock completion bash"): completion,
}


@pytest.mark.slow
@pytest.mark.parametrize(("page", "first"), COMMAND_BLOCKS, ids=lambda text: text)
def test_the_shown_commands_work_in_their_order(
    page: str, first: str, shell: Shell, tmp_path: Path
) -> None:
    COMMAND_BLOCKS[page, first](shell, find(page, first), tmp_path)


@pytest.mark.slow
def test_the_requests_of_the_http_page_are_answered_as_shown(shell: Shell, served: Served) -> None:
    receipt = ""
    for block in HTTP_SESSION:
        if "/groups/packers/fetch" in block.text:
            _fill(served)
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            command = stranger.at_ports(command, served.port, served.http_port)
            command = command.replace("RECEIPT", receipt)
            is_endless = ENDLESS in command
            if is_endless:
                command = command.replace("curl ", "curl --max-time 2 ")
            printed = shell(command, code=28 if is_endless else 0).strip()
            receipt = (re.findall(r'"receipt":"([^"]+)"', printed) or [receipt])[0]
            pattern = "(?s:.+)".join(map(re.escape, expected.strip().split(GAP)))
            matches = re.match if is_endless else re.fullmatch
            assert not expected or matches(pattern, printed), f"{command}: {printed}"


def _fill(served: Served) -> None:
    """Enough orders for a page of a group."""
    with penstock.connect(f"http://127.0.0.1:{served.http_port}") as client:
        client.publish_many([f"order {number}" for number in range(11)], "orders")


@pytest.mark.slow
def test_contexts_are_used_as_shown(shell: Shell, served: Served, tmp_path: Path) -> None:
    (tmp_path / "prod.key").write_text("psk_x")
    for line in find("CLI.md", "penstock context add prod").lines:
        is_far = "--context prod" in line  # there is no such host
        shell(line.replace(":8090", f":{served.http_port}"), code=3 if is_far else 0)


@pytest.mark.slow
def test_pub_and_sub_work_as_shown(shell: Shell, served: Served) -> None:
    for page, first in (("MQTT.md", "penstock serve &"), ("OPERATIONS.md", "penstock sub -t")):
        lines = [stranger.at_ports(line, served.port, 0) for line in find(page, first).lines]
        near = [line for line in lines if "broker.example" not in line and "serve" not in line]
        (reading,) = [line.removesuffix("&") for line in near if " sub " in line]
        writing = [line for line in near if " pub " in line]
        for line in writing:
            shell(line)
        assert writing and shell(f"{reading} --from earliest -C 1 -W 30").endswith("temp 21.5\n")


@pytest.mark.slow
def test_the_programs_with_a_client_of_the_python_page_run(served: Served) -> None:
    packed: list[object] = []
    with penstock.connect(f"http://127.0.0.1:{served.http_port}") as client:
        client.create_topic("orders")
        names = {"client": client, "pack": packed.append, "order": "tea", "time": time}
        names |= {"OutcomeUnknown": OutcomeUnknown, "UnavailableError": UnavailableError}
        for first in ("key = None", "work = client.join_group"):
            exec(compile(find("PYTHON.md", first).text, "PYTHON.md", "exec"), names)
    assert packed == ["tea"]


@pytest.mark.slow
def test_a_directory_and_a_server_are_opened_as_shown(served: Served, tmp_path: Path) -> None:
    shown = find("PYTHON.md", "broker = Broker(").text
    shown = shown.replace("127.0.0.1:8090", f"127.0.0.1:{served.http_port}")
    for line in shown.replace("./penstock_data", str(tmp_path / "own")).splitlines():
        names: dict[str, Any] = {"Broker": Broker, "penstock": penstock}
        exec(line, names)
        with names["broker"] as broker:
            broker.create_topic("orders")
            assert broker.publish("tea", "orders") == 0


@pytest.mark.slow
def test_a_handler_answers_a_request_as_shown(served: Served) -> None:
    client = penstock.connect(f"http://127.0.0.1:{served.http_port}")
    client.create_topic("sensors")
    names = {"client": client, "Reading": Reading}
    handler, _, rest = find("PYTHON.md", "@client.handler(").text.partition("\nclient.run()")
    exec(handler, names)
    Thread(target=client.run, kwargs={"start": "earliest"}, daemon=True).start()  # until it ends
    request = rest.partition("\n")[2].partition("  #")[0]
    assert eval(request, names) == {"fahrenheit": 212}


@pytest.mark.slow
def test_what_clients_and_readers_are_shown_as_is_what_the_commands_print(
    shell: Shell, served: Served
) -> None:
    """Subscribers that follow for ever end with their first message here."""
    shell(f"penstock sub -p {served.port} -i pump-7 -c -x 3600 -q 1 -t 'plant/#' -E")
    shell(f"""penstock pub -p {served.port} -t sensors/42/temp -q 1 -m '{{"celsius": 21.5}}'""")
    for first in ("penstock sub -t '$SYS", "penstock sub -t 'sensors/#' --from"):
        line = stranger.at_ports(find("MQTT.md", first).lines[0], served.port, 0)
        assert shell(f"{line} -C 1 -W 30")
    for first in ("$ penstock session list", "$ penstock client list"):
        for part in find("CLI.md", first).text.split("$ ")[1:]:
            command, expected, *_ = part.split("\n")
            printed = shell(command)
            assert printed.split("\n")[0].split() == expected.split(), command
            assert "pump-7" in printed
