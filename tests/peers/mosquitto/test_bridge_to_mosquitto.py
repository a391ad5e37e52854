"""Does our bridge join us to Mosquitto, with either version of MQTT, and survive its death?"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_5
from tests.bridges.bridged import (
    BOTH_WAYS,
    bridge_file,
    bridge_of,
    hosted,
    publish,
    reader,
    taken,
    wait_away,
    wait_connected,
)
from tests.doors.certificates import Authority
from tests.doors.wire import connect_kept
from tests.peers.mosquitto.mosquitto_server import Mosquitto
from tests.waiting import wait_until
from tools.peers import SEARCH


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_messages_pass_both_ways_once_each(tmp_path: Path, version: str) -> None:
    with Mosquitto(tmp_path) as mosquitto:
        address = f"mqtt://127.0.0.1:{mosquitto.port}"
        config = bridge_file(tmp_path, address, version=version)
        with hosted(tmp_path, "near", config) as near:
            wait_connected(near.ports["http"])
            with reader(near.port, "#") as here, reader(mosquitto.port, "#") as there:
                for qos in (0, 1, 2):
                    for port in (near.port, mosquitto.port):
                        publish(port, "both/a", b"both", qos)
                        assert taken(here) == taken(there) == ("both/a", b"both", qos)
                publish(near.port, "up/a", b"up")
                assert taken(there) == ("up/a", b"up", 1) and taken(here)[0] == "up/a"
                publish(mosquitto.port, "down/a", b"down", retain=True)
                assert taken(here) == ("down/a", b"down", 1) and taken(there)[0] == "down/a"
            with reader(near.port, "down/#") as late:
                assert late.receive().retain


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_nothing_is_lost_while_mosquitto_is_killed_and_comes_back(
    tmp_path: Path, version: str
) -> None:
    saving = f"persistence true\npersistence_location {tmp_path}/\nautosave_on_changes true\n"
    mosquitto = Mosquitto(tmp_path, f"{saving}autosave_interval 1\n")
    config = bridge_file(tmp_path, f"mqtt://127.0.0.1:{mosquitto.port}", version=version)
    with mosquitto, hosted(tmp_path, "near", config) as near:
        with connect_kept(mosquitto.port, "reader", MQTT_5)[0] as there:
            there.subscribe("both/#", qos=2)
        wait_connected(near.ports["http"])
        publish(near.port, "both/x", b"0")
        wait_until(lambda: bridge_of(near.ports["http"])["forwarded"] == 1)
        mosquitto.kill()
        wait_away(near.ports["http"])
        for number in range(1, 201):
            publish(near.port, "both/x", b"%d" % number, 1 + number % 2)
        mosquitto.start().wait_listening()
        there, is_present = connect_kept(mosquitto.port, "reader", MQTT_5)
        with there:
            assert is_present
            numbers: list[int] = []
            while len(set(numbers) - {0}) < 200:
                numbers.append(int(taken(there)[1]))
        for rest in (0, 1):  # Mosquitto keeps the order of messages of one QoS
            mine = [number for number in numbers if number and number % 2 == rest]
            assert mine == sorted(set(mine))


def test_mosquitto_keeps_messages_for_us_while_we_are_away(tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as mosquitto:
        config = bridge_file(tmp_path, f"mqtt://127.0.0.1:{mosquitto.port}")
        with hosted(tmp_path, "near", config) as near:
            wait_connected(near.ports["http"])
        for number in range(50):
            publish(mosquitto.port, "both/x", b"%d" % number, 1 + number % 2)
        with hosted(tmp_path, "near", config) as near:
            wait_until(lambda: bridge_of(near.ports["http"])["received"] == 50)


def test_a_bridge_logs_in_to_mosquitto_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("localhost")
    passwords = tmp_path / "passwords"
    passwords.touch(0o600)
    program = shutil.which("mosquitto_passwd", path=SEARCH)
    assert program is not None
    subprocess.run([program, "-b", str(passwords), "plant", "secret"], check=True)
    (tmp_path / "password").write_text("secret")
    settings = f"certfile {cert}\nkeyfile {key}\npassword_file {passwords}\n"
    with Mosquitto(tmp_path, settings, is_open=False) as mosquitto:
        config = bridge_file(
            tmp_path,
            f"mqtts://localhost:{mosquitto.port}",
            BOTH_WAYS,
            tls_ca=authority.cert,
            user="plant",
            password_file=tmp_path / "password",
        )
        with hosted(tmp_path, "near", config) as near:
            wait_connected(near.ports["http"])
            publish(near.port, "up/a", b"x", 2)
            wait_until(lambda: bridge_of(near.ports["http"])["forwarded"] == 1)
