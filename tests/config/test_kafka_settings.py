"""Are settings of topics in Kafka checked before anything is opened, and is the way out named?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.broker.settings import make_settings, topic_settings
from penstock.config import load, server_settings
from penstock.model.errors import InvalidSetting, RefusedError

KAFKA: dict[str, Any] = {"log_backend": "kafka", "kafka_bootstrap": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"kafka_bootstrap": ""}, "need the addresses of its brokers"),
        ({"kafka_bootstrap": "nowhere"}, "is not a list of addresses: write HOST:PORT"),
        ({"kafka_partitions": 0}, "is not a number of partitions: use 1 to 1000"),
        ({"kafka_replication": 0}, "is not a number of copies"),
        ({"history_url": "/somewhere"}, "needs topics in files.* use the job `archive` there"),
        ({"kafka_prefix": "a.b"}, "cannot begin the names of topics in Kafka"),
        ({"kafka_sasl_mechanism": "GSSAPI"}, "use one of 'PLAIN'"),
        ({"kafka_sasl_mechanism": "PLAIN"}, "set all of them, or none"),
        ({"kafka_sasl_mechanism": "PLAIN", "kafka_sasl_user": "u"}, "has no password"),
        (
            {
                "kafka_sasl_mechanism": "PLAIN",
                "kafka_sasl_user": "u",
                "kafka_sasl_password_file": "/nowhere/at/all",
            },
            "sasl_password_file '/nowhere/at/all' cannot be read",
        ),
    ],
)
def test_a_setting_that_cannot_work_is_rejected(
    tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidSetting, match=told):
        Broker(tmp_path / "data", **{**KAFKA, **changed}).close()


def test_the_default_durability_in_kafka_is_replicated_unless_another_is_given() -> None:
    assert make_settings(KAFKA).durability == "replicated"
    assert make_settings({**KAFKA, "durability": "fsync"}).durability == "fsync"
    flags = {"log.backend": "kafka", "kafka.bootstrap": "127.0.0.1:1"}
    served = server_settings(load(None, flags, {}))
    assert make_settings(served.broker).durability == "replicated"
    flags["topics.defaults.durability"] = "fsync"
    served = server_settings(load(None, flags, {}))
    assert make_settings(served.broker).durability == "fsync"


def test_files_have_no_replicated_messages(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        with pytest.raises(RefusedError, match="use 'fsync' or 'os'"):
            broker.create_topic("orders", durability="replicated")
        broker.create_topic("orders")
        with pytest.raises(RefusedError, match="use 'fsync' or 'os'"):
            broker.alter_topic("orders", durability="replicated")


def test_new_topics_have_16_partitions_in_kafka_and_one_in_files() -> None:
    assert topic_settings(make_settings(KAFKA), {}).partitions == 16
    assert topic_settings(make_settings({**KAFKA, "kafka_partitions": 3}), {}).partitions == 3
    assert topic_settings(make_settings({}), {}).partitions == 1
