"""Do queries run where Spark is somewhere else: on a standalone cluster, through Spark Connect?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock import connect
from tests.doors.hosted import Hosted
from tests.pipeline.by_address.clusters import ROOT, connect_server, environment, standalone
from tests.pipeline.source.reading import address

RECORDS = 150
END_S_MAX = 240.0

pytestmark = [pytest.mark.java, pytest.mark.timeout(500)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Hosted]:
    with Hosted(tmp_path / "data") as hosted:
        with connect(address(hosted)) as client:
            for topic in ("in", "out", "copy", "totals"):
                client.create_topic(topic)
            client.publish_many([str(number) for number in range(RECORDS)], "in", name="in/x")
        yield hosted


def check(master: str, broker: Hosted, scratch: Path) -> Any:
    """Run the driver; everything it did is there. What it says of the declared pipeline."""
    driver = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.pipeline.by_address.cluster_child",
            master,
            address(broker),
            scratch,
        ],
        capture_output=True,
        text=True,
        timeout=END_S_MAX,
        env=environment(scratch),
        cwd=ROOT,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr
    told = json.loads(driver.stdout.splitlines()[-1])
    assert (told["offsets"], told["archived"]) == (list(range(RECORDS)), RECORDS)
    wanted = [b"%d" % number for number in range(RECORDS)]
    with connect(address(broker)) as client:
        out, copy = client.read("out"), client.read("copy")
    assert [record.payload for record in out] == wanted
    assert {record.name for record in out} == {"in/x"}
    assert [record.payload for record in copy] == wanted
    assert [record.name for record in copy] == [f"copy/{number}" for number in range(RECORDS)]
    table = DeltaTable(str(scratch / "table")).to_pyarrow_table(columns=["offset"])
    assert sorted(table["offset"].to_pylist()) == list(range(RECORDS))
    return told["sql"]


def test_tasks_on_a_standalone_cluster_read_and_write_through_the_address(
    broker: Hosted, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    with standalone(scratch) as master:
        assert check(master, broker, scratch) == RECORDS
    wanted = [{"half": half, "total": sum(range(half, RECORDS, 2))} for half in (0, 1)]
    with connect(address(broker)) as client:
        totals = [record.value for record in client.read("totals")]
    assert sorted(totals, key=lambda one: one["half"]) == wanted
    rows = DeltaTable(str(scratch / "totals")).to_pyarrow_table().to_pylist()
    assert sorted(rows, key=lambda one: one["half"]) == wanted
    assert list((scratch / "work").glob("app-*/0")), "no executor of the worker had anything to do"


def test_a_client_of_spark_connect_uses_topics_as_any_other(broker: Hosted, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    with connect_server(scratch) as remote:
        refused = check(remote, broker, scratch)
    assert "give a master, such as local[*] or spark://HOST:7077" in refused
