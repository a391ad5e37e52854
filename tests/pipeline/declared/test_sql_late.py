"""Does a declared pipeline start on a machine that is too busy for Spark's patience?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.declared.declaring import COPY, make_topics, publish, rows_of, values
from tests.pipeline.killed.drivers import run_to_the_end

# Spark waits 10 s for the process of a source.
LATE = """
import sys, time
from pathlib import Path

if any("python_streaming_source_runner" in one for one in sys.orig_argv):
    try:
        Path(__file__).with_name("was-late").touch(exist_ok=False)
    except FileExistsError:
        pass
    else:
        time.sleep(12)
"""


@pytest.mark.java
def test_a_query_whose_source_comes_too_late_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, file = make_topics(tmp_path / "data"), tmp_path / "flow.toml"
    file.write_text(COPY)
    publish(data, "one", "two")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(LATE)
    monkeypatch.syspath_prepend(str(site))
    run_to_the_end("tests.pipeline.killed.sql_child", str(data), str(file), str(tmp_path))
    assert (site / "was-late").exists()
    assert values(data) == ["one", "two"]
    assert [row["payload"] for row in rows_of(tmp_path / "table")] == ["one", "two"]
