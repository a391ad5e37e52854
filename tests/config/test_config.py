"""Settings: which source wins, and what does a mistake in one of them hear?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import penstock as penstock_package
from penstock import Broker
from penstock.broker.settings import make_settings
from penstock.cli.server.settings import template
from penstock.config import (
    SETTINGS,
    Binding,
    load,
    parse_address,
    server_settings,
    spark_master,
    spark_variables,
)
from penstock.doors.mqtt.limits import MqttLimits
from penstock.model.errors import InvalidSetting
from tests.doors.served import Served
from tests.doors.wire import Wire
from tests.http.asking import Asking


def write(directory: Path, text: str) -> Path:
    path = directory / "penstock.toml"
    path.write_text(text)
    return path


def penstock(
    *arguments: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={**os.environ, **variables},
    )


def test_a_flag_wins_over_the_environment_that_over_the_file_that_over_the_default(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, '[mqtt]\nlisten = "127.0.0.1:1"\n')
    variables = {"PENSTOCK_MQTT__LISTEN": "127.0.0.1:2"}
    flags = {"mqtt.listen": "127.0.0.1:3"}
    for given, value, origin in (
        ((None, {}, {}), "127.0.0.1:1883", "default"),
        ((file, {}, {}), "127.0.0.1:1", str(file)),
        ((file, {}, variables), "127.0.0.1:2", "PENSTOCK_MQTT__LISTEN"),
        ((None, {}, variables), "127.0.0.1:2", "PENSTOCK_MQTT__LISTEN"),
        ((file, flags, variables), "127.0.0.1:3", "flag"),
    ):
        effective = load(*given)
        assert effective.values["mqtt.listen"] == value
        assert effective.origins["mqtt.listen"] == origin


def test_defaults_are_those_of_the_parts_they_go_to() -> None:
    settings = server_settings(load(variables={}))
    assert settings.mqtt_limits == MqttLimits()
    assert make_settings(settings.broker) == make_settings({})
    assert settings.tls is None and not settings.allow_anonymous and settings.mqtts == "off"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[mqtt]\nlistn = "x"', "setting 'mqtt.listn' is unknown: did you mean 'mqtt.listen'?"),
        ("[mqt]\nlisten = 1", "'mqt' is unknown: did you mean 'mqtt'?"),
        ('listen = "x"', "'listen' is unknown: did you mean 'mqtt.listen'?"),
        ('[server]\nlisten = "x"', "'server.listen' is unknown: did you mean "),
        (
            "[zzz]\nq = 1",
            "'zzz' is unknown: tables are access, bindings, bridges, bus, catalog, history, http, ",
        ),
        ("mqtt = 1", "mqtt 1 is not a table: write [mqtt]"),
        ("[mqtt]\nlisten = 1883", "[mqtt] listen 1883 is not a string: write it in quotes"),
        ('[mqtt]\nlisten = "1883"', "[mqtt] listen: '1883' is not a valid address: use HOST:PORT"),
        ('[mqtt]\nlisten = "a:70000"', "'a:70000' is not a valid address: use HOST:PORT"),
        ('[mqtt]\nconnections_max = "many"', "connections_max 'many' is not a whole number from 1"),
        ("[mqtt]\nconnections_max = 0", "connections_max 0 is not a whole number from 1"),
        ("[mqtt]\nconnections_max = true", "connections_max True is not a whole number"),
        ("[mqtt]\nkeep_alive_s_max = 65536", "keep_alive_s_max 65536 is not a whole number"),
        ("[mqtt]\nwill_grace_s = -1", "will_grace_s -1 is not a whole number"),
        ("[mqtt]\nauto_create_topics = -1", "auto_create_topics -1 is not a whole number from 0"),
        ("[mqtt]\nauto_create_topics = true", "auto_create_topics True is not a whole number"),
        ("[mqtt]\nqueue_qos0 = 1", "[mqtt] queue_qos0 1 is neither true nor false"),
        ("[mqtt]\nqueue_qos0_messages = true", "is unknown: did you mean 'mqtt.queue_qos0'?"),
        ('[mqtt]\nconnect_timeout = "soon"', "connect_timeout 'soon' is not a duration"),
        ('[mqtt]\ntls_client_certificates = "no"', "is neither 'optional' nor 'required'"),
        ('[access]\nallow_anonymous = "yes"', "allow_anonymous 'yes' is neither true nor false"),
        ('[topics.defaults]\ndurability = "no"', "[topics.defaults] durability 'no' is unknown"),
        ("[topics.defaults]\nretention_age = -1", "retention_age -1 is not a duration"),
        ('[log]\nsegment_bytes = "1 KiB"', "[log] segment_bytes '1 KiB' is too small"),
        ("[log]\ndisk_free_percent_min = 100", "disk_free_percent_min 100 is not a percentage"),
        ("[catalog]\nposition_saves_max = 0", "position_saves_max 0 is not a whole number above 0"),
        ('[bindings]\nfilter = "a"', "is not a list: write [[bindings]]"),
        ('[[bindings]]\nfilter = "a"', "must have exactly the keys 'filter' and 'topic'"),
        ('[[bindings]]\nfilter = "a/#/b"\ntopic = "t"', "[[bindings]] filter 'a/#/b' has a level"),
        ('[[bindings]]\nfilter = "a"\ntopic = "a/b"', "[[bindings]] topic name 'a/b'"),
        ('[roles]\nname = "a"', "is not a list: write [[roles]]"),
        ('[[roles]]\nname = "a"', "has no key 'rules': add it"),
        ('[[roles]]\nname = "a"\nrules = []\nrule = 1', "the unknown key 'rule': use 'name', "),
        ('[[roles]]\nname = "a b"\nrules = []', "[[roles]] role name 'a b' is invalid"),
        ('[[roles]]\nname = "admin"\nrules = []', "[[roles]] role 'admin' is built in"),
        ('[[roles]]\nname = "a"\nrules = ["allow a"]', "[[roles]] rule 'allow a' is incomplete"),
        ('[[roles]]\nname = "a"\nrules = "allow read #"', "is not a list: write rules = ["),
        ('[[roles]]\nname = "a"\nrules = []\n' * 2, "role 'a' is declared twice"),
        ('[[rules]]\nrole = "a"', "has no key 'rule': add it"),
        ('[[rules]]\nrule = "deny read #"\nrole = "a"', "role 'a' is not declared in this file"),
        ('[[rules]]\nrule = "x"\nrole = "a"\nuser = "b"', "has both 'role' and 'user'"),
        ('[[rules]]\nrule = "deny read #"\ntenant = 1', "is not a valid tenant name"),
        ('[access]\nmetrics = "all"', "metrics 'all' is unknown: use 'login', 'admin' or 'open'"),
        ("[mqtt\n", "is not TOML"),
        (f"a = {'[' * 3_000}{']' * 3_000}\n", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_place_and_the_way_out(
    tmp_path: Path, text: str, complaint: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(InvalidSetting) as raised:
        load(file, variables={})
    assert str(raised.value).startswith(f"{file}")
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        '[history.options]\nsecret = ["hidden"]',
        '[history]\nurl = "https://me:hidden@store/place"',
        '[catalog]\npassword = "hidden"',
        '[[bridges]]\npassword = "hidden"',
        '[bridges]\npassword = "hidden"',
    ],
)
def test_a_mistake_does_not_show_a_secret(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        load(write(tmp_path, text), variables={})
    assert "hidden" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="nowhere.toml cannot be read: No such file"):
        load(tmp_path / "nowhere.toml", variables={})


@pytest.mark.parametrize(
    ("variable", "text", "path", "value"),
    [
        ("PENSTOCK_SERVER__DATA", "/data", "server.data", "/data"),
        ("PENSTOCK_MQTT__CONNECTIONS_MAX", "5", "mqtt.connections_max", 5),
        ("PENSTOCK_LOG__DISK_FREE_PERCENT_MIN", "2.5", "log.disk_free_percent_min", 2.5),
        ("PENSTOCK_ACCESS__ALLOW_ANONYMOUS", "true", "access.allow_anonymous", True),
        ("PENSTOCK_ACCESS__ALLOW_ANONYMOUS", "0", "access.allow_anonymous", False),
        ("PENSTOCK_TOPICS__DEFAULTS__RETENTION_AGE", "2h", "topics.defaults.retention_age", "2h"),
    ],
)
def test_the_environment_says_the_same_in_text(
    variable: str, text: str, path: str, value: Any
) -> None:
    assert load(variables={variable: text}).values[path] == value


def test_every_setting_has_its_variable() -> None:
    for setting in SETTINGS:
        effective = load(variables={setting.variable: str(setting.default)})
        assert effective.origins[setting.path] == setting.variable
        assert effective.values[setting.path] == setting.default


@pytest.mark.parametrize(
    ("variable", "text", "complaint"),
    [
        ("PENSTOCK_MQTT__LISTN", "x", "PENSTOCK_MQTT__LISTN: setting 'mqtt.listn' is unknown"),
        ("PENSTOCK_MQTT__CONNECTIONS_MAX", "x", "connections_max 'x' is not a whole number"),
        ("PENSTOCK_ACCESS__ALLOW_ANONYMOUS", "si", "'si' is neither true nor false"),
        ("PENSTOCK_MQTT__LISTEN", "", "[mqtt] listen '' is empty: give a value, or leave it out"),
        ("PENSTOCK_MQTT_LISTEN", "x", "did you mean PENSTOCK_MQTT__LISTEN?"),
        ("PENSTOCK_KEYS", "x", "did you mean PENSTOCK_KEY?"),
        ("PENSTOCK_BINDINGS", "x", "from the settings file: write [[bindings]]"),
        ("PENSTOCK_ROLES", "x", "from the settings file: write [[roles]]"),
        ("PENSTOCK_QZXV", "x", "is PENSTOCK_TABLE__KEY, with two underscores"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    variable: str, text: str, complaint: str
) -> None:
    with pytest.raises(InvalidSetting) as raised:
        load(variables={variable: text})
    assert str(raised.value).startswith(variable)
    assert complaint in str(raised.value)


def test_other_variables_are_none_of_its_business() -> None:
    names = ["PATH", "A__B", "PENSTOCK_AT", "PENSTOCK_KEY"]
    names += ["PENSTOCK_SERVICE_HOST", "PENSTOCK_SERVICE_PORT_MQTT", "PENSTOCK_PORT"]
    names += ["PENSTOCK_PORT_1883_TCP", "PENSTOCK_PORT_1883_TCP_ADDR"]
    assert load(variables=dict.fromkeys(names, "x")) == load(variables={})


def test_a_server_starts_whatever_the_tests_and_make_are_told() -> None:
    root = Path(__file__).parents[2]
    files = [root / "Makefile", *(root / "tests").rglob("*.py"), *(root / "src").rglob("*.py")]
    found = set()
    for file in [one for one in files if one != Path(__file__)]:
        found |= set(
            re.findall(r"(?<![A-Z_])PENSTOCK_[A-Z]+(?:_[A-Z]+)*(?![A-Z_])", file.read_text())
        )
    assert {"PENSTOCK_SEED", "PENSTOCK_ROUNDS"} <= found
    load(variables=dict.fromkeys(found, "x"))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:1883", ("127.0.0.1", 1883)),
        ("[::1]:1883", ("::1", 1883)),
        ("broker.example:0", ("broker.example", 0)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "a", ":1", "a:", "a:b", "a:-1", "a:1.5", "a:65536", "a:²"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidSetting, match="is not a valid address"):
        parse_address(text)


def test_the_template_changes_nothing_and_its_comments_are_the_defaults(tmp_path: Path) -> None:
    assert load(write(tmp_path, template()), variables={}).values == load(variables={}).values
    uncommented = []
    for line in template().splitlines():
        rest = line.removeprefix("# ")
        uncommented.append(rest if " = " in rest or rest.startswith("[") else "")
    effective = load(write(tmp_path, "\n".join(uncommented)), variables={})
    assert effective.values == load(variables={}).values
    assert set(effective.origins.values()) == {str(tmp_path / "penstock.toml")}
    assert effective.bindings == (Binding("plant/+/temperature", "temperatures"),)


# The commands


@pytest.mark.slow
def test_config_init_writes_a_file_that_serve_takes_and_never_overwrites_one(
    tmp_path: Path,
) -> None:
    answer = penstock("config", "init", cwd=tmp_path)
    assert answer.returncode == 0 and "penstock serve --config penstock.toml" in answer.stdout
    file = tmp_path / "penstock.toml"
    assert tomllib.loads(file.read_text())["mqtt"] == {}
    file.write_text("[server]\ndata = 'mine'\n")
    answer = penstock("config", "init", cwd=tmp_path)
    assert answer.returncode == 1 and "already exists and was not changed" in answer.stderr
    assert "mine" in file.read_text()
    answer = penstock("config", "init", "other.toml", "--json", cwd=tmp_path)
    assert json.loads(answer.stdout) == {"written": "other.toml"}
    answer = penstock("config", "init", "nodir/x.toml", cwd=tmp_path)
    assert answer.stderr == "penstock: nodir/x.toml cannot be written: No such file or directory\n"


@pytest.mark.slow
def test_check_prints_what_holds_as_a_file_and_touches_nothing(tmp_path: Path) -> None:
    rows = {
        "roles": [{"name": "sensor", "rules": ["allow publish sensors/%u/#"]}],
        "rules": [
            {"rule": "deny read hr/#"},
            {"rule": "allow read hr/#", "user": "alice", "tenant": "acme"},
            {"rule": "allow subscribe a", "role": "sensor"},
        ],
    }
    tables = [
        f"[[{table}]]\n" + "".join(f"{key} = {json.dumps(one[key])}\n" for key in one)
        for table, given in rows.items()
        for one in given
    ]
    binding = '[[bindings]]\nfilter = "a/#"\ntopic = "as"\n'
    file = write(tmp_path, binding + "".join(tables))
    data = tmp_path / "data"
    answer = penstock(
        *("serve", "--check", "--config", str(file), "--data", str(data)),
        PENSTOCK_MQTT__LISTEN="127.0.0.1:7",
    )
    assert answer.returncode == 0, answer.stderr
    shown = tomllib.loads(answer.stdout)
    assert shown["server"]["data"] == str(data) and shown["mqtt"]["listen"] == "127.0.0.1:7"
    assert shown["bindings"] == [{"filter": "a/#", "topic": "as"}]
    assert {table: shown[table] for table in rows} == rows
    assert "# PENSTOCK_MQTT__LISTEN" in answer.stdout
    assert not data.exists()
    again = load(write(tmp_path, answer.stdout), variables={})
    assert again.values["mqtt.listen"] == "127.0.0.1:7"
    told = penstock("serve", "--check", "--json", "--mqtt", "off", "--config", str(file)).stdout
    as_json = json.loads(told)
    assert {table: as_json[table] for table in rows} == rows
    assert as_json["settings"]["mqtt.listen"] == "off"
    assert as_json["origins"]["mqtt.listen"] == "flag"


@pytest.mark.slow
def test_check_says_what_is_wrong(tmp_path: Path) -> None:
    file = write(tmp_path, "[mqtt]\nlissten = 1\n")
    answer = penstock("serve", "--check", "--config", str(file))
    assert answer.returncode == 1
    assert "did you mean 'mqtt.listen'?" in answer.stderr


@pytest.mark.slow
def test_bindings_are_applied_at_every_start_and_settings_reach_the_broker(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[[bindings]]\nfilter = "plant/+/temp"\ntopic = "Temperatures"\n'
        '[[bindings]]\nfilter = "plant/#"\ntopic = "rest"\n'
        '[topics.defaults]\nretention_age = "1h"\ndurability = "os"\n',
    )
    data = tmp_path / "data"
    for _ in range(2):
        with Served(data, "--config", str(file)) as broker, Wire(broker.port) as wire:
            wire.connect()
            wire.publish("plant/1/temp", b"20", 1)
            wire.publish("plant/1/noise", b"3", 1)
    with Broker(data) as broker:
        assert [r.name for r in broker.read("temperatures")] == ["plant/1/temp"] * 2
        assert [r.name for r in broker.read("rest")] == ["plant/1/noise"] * 2
        found = {one.topic: (one.retention_age, one.durability) for one in broker.topics()}
        assert found["Temperatures"] == (3600, "os")


@pytest.mark.slow
def test_declared_rules_hold_and_a_reload_applies_changed_ones(tmp_path: Path) -> None:
    file = write(tmp_path, '[[rules]]\nrule = "deny publish secret/#"\n')
    data = tmp_path / "data"
    with (
        Served(data, "--config", str(file)) as broker,
        Asking(broker.http_port) as client,
    ):
        client.ask("PUT", "/v1/topics/secret")

        def publish_status() -> int:
            message = {"name": "secret/a", "payload": "x"}
            return client.ask("POST", "/v1/topics/secret/records", message).status

        assert publish_status() == 403
        write(tmp_path, '[[rules]]\nrule = "deny publish"\n')
        refused = penstock("reload", "--at", str(data))
        assert refused.returncode == 1 and "rule 'deny publish' is incomplete" in refused.stderr
        assert publish_status() == 403
        write(tmp_path, "")
        assert penstock("reload", "--at", str(data)).returncode == 0
        assert publish_status() == 200


@pytest.mark.slow
def test_a_binding_that_contradicts_an_existing_one_is_refused_at_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data) as broker:
        broker.create_topic("a")
        broker.bind("x/#", "a")
    file = write(tmp_path, '[[bindings]]\nfilter = "x/#"\ntopic = "b"\n')
    answer = penstock(
        "serve",
        "--mqtt",
        "127.0.0.1:0",
        "--http",
        "off",
        "--data",
        str(data),
        "--config",
        str(file),
    )
    assert answer.returncode == 1
    assert "filter 'x/#' is bound to topic 'a'" in answer.stderr


@pytest.mark.slow
def test_commands_find_their_directory_in_the_environment(tmp_path: Path) -> None:
    with Broker(tmp_path / "here") as broker:
        broker.create_topic("found")
    answer = penstock("topic", "list", "--json", PENSTOCK_AT=str(tmp_path / "here"))
    assert [one["topic"] for one in json.loads(answer.stdout)] == ["found"]


def test_only_the_settings_read_the_environment() -> None:
    root = Path(penstock_package.__file__).parent
    readers = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "os.environ" in path.read_text() or "getenv" in path.read_text()
    ]
    # Spark and its Java are set up through the environment, there is no other way.
    assert sorted(readers) == ["config/defaults.py", "pipeline/java.py", "pipeline/spark.py"]


@pytest.mark.parametrize(
    ("given", "master"),
    [
        ({}, "local[*]"),
        ({"PENSTOCK_SPARK__MASTER": "spark://h:7077"}, "spark://h:7077"),
        ({"PENSTOCK_SPARK__REMOTE": "sc://h:15002"}, "sc://h:15002"),
    ],
)
def test_jobs_run_where_master_or_remote_say(given: dict[str, str], master: str) -> None:
    assert spark_master(given) == master
    assert spark_master(spark_variables(master)) == master


def test_master_and_remote_exclude_each_other_and_a_remote_is_an_address_of_connect() -> None:
    both = {"PENSTOCK_SPARK__MASTER": "spark://h:1", "PENSTOCK_SPARK__REMOTE": "sc://h:2"}
    with pytest.raises(InvalidSetting, match="are both set"):
        spark_master(both)
    with pytest.raises(InvalidSetting, match="is not a Spark Connect URL"):
        spark_master({"PENSTOCK_SPARK__REMOTE": "http://h:2"})
