"""`[[bridges]]`: is everything wrong with it said at once, with the key and the value?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.config import load, server_settings
from penstock.core.naming.bridged_names import BridgeTopic, local_name, remote_name
from penstock.model.errors import InvalidSetting
from penstock.mqtt.kinds import MQTT_3_1_1
from tests.docs.test_readme import blocks

GOOD = {
    "name": '"plant"',
    "address": '"mqtt://127.0.0.1"',
    "topics": '[{filter = "a/#"}]',
}


def written(directory: Path, **keys: str) -> Path:
    path = directory / "bridge.toml"
    rows = GOOD | keys
    path.write_text(
        "\n".join(["[[bridges]]", *(f"{key} = {value}" for key, value in rows.items())])
    )
    return path


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("name", '"Plant 1"', "name 'Plant 1' is not valid"),
        ("name", "7", "name 7 is not valid"),
        ("address", '"plant:1883"', "address 'plant:1883' is not valid"),
        ("address", '"http://plant"', "address 'http://plant' is not valid"),
        ("address", '"mqtt://plant:99999"', "address 'mqtt://plant:99999' is not valid"),
        ("address", '"mqtt://me:secret@plant"', "address contains a login"),
        ("address", '"mqtt://plant/path"', "is not valid"),
        ("version", '"4"', "version '4' is unknown: use '5' or '3.1.1'"),
        ("client_id", '""', "client_id '' is empty"),
        ("password_file", '"x"', "password_file needs the user"),
        ("tls_ca", '"ca.pem"', "does not use TLS"),
        ("keep_alive_s", "0", "keep_alive_s 0 is not a whole number from 5 to 65535"),
        ("in_flight_max", "0", "in_flight_max 0 is not a whole number from 1 to 1000"),
        ("clean_start", '"no"', "clean_start 'no' is neither true nor false"),
        ("role", '""', "role"),
        ("tenant", '"A/B"', "A/B"),
        ("colour", '"red"', "unknown key 'colour'"),
        ("password", '"secret"', "unknown key 'password'"),
        ("topics", "[]", "topics has 0 entries"),
        ("topics", '"a/#"', "is not a list: write [[bridges.topics]]"),
        ("topics", "[{qos = 1}]", "has no key 'filter'"),
        ("topics", '[{filter = "a", size = 1}]', "unknown key 'size'"),
        ("topics", '[{filter = "a#"}]', "a#"),
        ("topics", '[{filter = "a", direction = "up"}]', "direction 'up' is unknown"),
        ("topics", '[{filter = "a", qos = 3}]', "qos 3 is not a whole number from 0 to 2"),
        ("topics", '[{filter = "a", local_prefix = "x/+/"}]', "local_prefix 'x/+/' contains '+'"),
        ("topics", '[{filter = "$share/g/a"}]', "is a shared subscription"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(
    tmp_path: Path, key: str, value: str, complaint: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        load(written(tmp_path, **{key: value}), {}, {})
    assert complaint in str(refused.value)
    assert "bridge.toml" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_two_bridges_need_different_names_and_client_ids(tmp_path: Path) -> None:
    one = written(tmp_path).read_text()
    path = tmp_path / "bridge.toml"
    path.write_text(f"{one}\n{one}")
    with pytest.raises(InvalidSetting, match="'plant' is used twice"):
        load(path, {}, {})
    other = one.replace('"plant"', '"other"') + '\nclient_id = "penstock-plant"'
    path.write_text(f"{one}\n{other}")
    with pytest.raises(InvalidSetting, match="same client_id 'penstock-plant'"):
        load(path, {}, {})


def test_files_that_cannot_be_used_are_found_by_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing")
    for keys, complaint in (
        ({"user": '"me"', "password_file": f'"{missing}"'}, "password_file"),
        ({"address": '"mqtts://x"', "tls_ca": f'"{missing}"'}, "tls_ca"),
    ):
        config = written(tmp_path, **keys)
        assert main(["serve", "--config", str(config), "--check"]) == 1
        said = capsys.readouterr().err
        assert complaint in said and missing in said and "No such file" in said


def test_what_check_prints_makes_the_same_bridges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    keys = {
        "address": '"mqtts://[::1]:1"',
        "user": '"me"',
        "password_file": f'"{password}"',
        "topics": '[{filter = "a", qos = 2, direction = "both"}, {filter = "#"}]',
    }
    config = written(tmp_path, **keys)
    assert main(["serve", "--config", str(config), "--check"]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    assert "secret" not in printed.read_text()
    assert load(printed, {}, {}).bridges == load(config, {}, {}).bridges
    assert main(["serve", "--config", str(config), "--check", "--json"]) == 0
    assert '"in_flight_max": 1000' in capsys.readouterr().out


def test_defaults_are_those_of_the_documentation(tmp_path: Path) -> None:
    (bridge,) = server_settings(load(written(tmp_path), {}, {})).bridges
    assert (bridge.port, bridge.client_id, bridge.role) == (1883, "penstock-plant", "client")
    assert bridge.topics == (BridgeTopic("a/#", "out", 1),)
    (bridge,) = load(written(tmp_path, version='"3.1.1"'), {}, {}).bridges
    assert (bridge.version, bridge.in_flight_max) == (MQTT_3_1_1, 20)


def test_the_example_of_the_documentation_is_valid(tmp_path: Path) -> None:
    (example,) = [one for one in blocks("docs/MQTT.md", "toml") if "[[bridges]]" in one]
    path = tmp_path / "penstock.toml"
    path.write_text(example)
    (bridge,) = load(path, {}, {}).bridges
    assert local_name(bridge.topics, "temp/7") == "plant1/temp/7"
    assert remote_name(bridge.topics, "commands/stop") == "commands/stop"
    assert remote_name(bridge.topics, "plant1/temp/7") == "", "never back to where it came from"


def test_a_name_that_only_the_parent_of_a_filter_matches_is_not_carried() -> None:
    topics = (BridgeTopic("#", "both", 1, "a/", "b/"),)
    assert remote_name(topics, "a") == "" and local_name(topics, "b") == ""
    assert remote_name(topics, "a/x") == "b/x" and local_name(topics, "b/x") == "a/x"
