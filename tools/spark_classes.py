"""Writes down the classes that Spark loads, once, so that every Java of the tests starts sooner.

    .venv/bin/python -m tools.spark_classes

Loading and checking classes is half of the processor time of a Spark that lives for seconds, and
`make test-spark` starts dozens of them. Java can map them from a file instead (class data
sharing). The file is in build/ and is made again when Java or Spark changes; a Java that it does
not fit ignores it. Without a Java nothing is made: the tests say what they miss.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tools.engine import ROOT
from tools.packages import say

CLASSES: Final = ROOT / "build" / "spark.jsa"
MADE_FOR: Final = CLASSES.with_suffix(".txt")
# A Java that lives for seconds gains nothing from its second compiler, which takes a core from it.
BRIEF_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXIT_S_MAX: Final = 120.0  # writing the file takes 10 s of a core


def java_options() -> str:
    """Options of a Java that lives for seconds, with the classes if they have been written."""
    if not CLASSES.is_file():
        return BRIEF_JAVA
    return f"{BRIEF_JAVA} -XX:SharedArchiveFile={CLASSES} -Xlog:cds=off -Xlog:cds+dynamic=off"


def main() -> int:
    from penstock.model.errors import RefusedError
    from penstock.pipeline.java import find_java

    try:
        java = find_java()
    except RefusedError as refused:
        say("spark", f"no classes are written: {refused}")
        return 0
    wanted = _describe(java)
    if CLASSES.is_file() and MADE_FOR.is_file() and MADE_FOR.read_text() == wanted:
        return 0
    started_s = time.monotonic()
    say("spark", "writing down its classes, once: the tests start Spark in half the time")
    CLASSES.parent.mkdir(exist_ok=True)
    CLASSES.unlink(missing_ok=True)
    unfinished = CLASSES.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f"{BRIEF_JAVA} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable -Xlog:all=error:stderr"
    )
    _use_spark()
    unfinished.rename(CLASSES)
    MADE_FOR.write_text(wanted)
    say("spark", f"done in {time.monotonic() - started_s:.0f} s")
    return 0


def _describe(java: Path) -> str:
    import pyspark

    said = subprocess.run([java / "bin" / "java", "-version"], capture_output=True, check=True)
    return f"{java}\n{said.stderr.decode()}{pyspark.__file__} {pyspark.__version__}\n{BRIEF_JAVA}\n"


def _use_spark() -> None:
    """A bit of everything that the tests do, so that its classes are loaded when Java ends."""
    from penstock import Broker
    from penstock.pipeline import session

    with tempfile.TemporaryDirectory() as scratch:
        with Broker(f"{scratch}/data") as broker:
            broker.create_topic("orders")
            broker.publish_many([{"n": n} for n in range(100)], "orders")
        spark = session("classes", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
        try:
            source = {"path": f"{scratch}/data", "topic": "orders"}
            rows = spark.read.format("penstock").options(**source).load()
            rows.createOrReplaceTempView("orders")
            spark.sql(
                "SELECT try_variant_get(try_parse_json(CAST(payload AS STRING)), '$.n', 'int') k, "
                "count(*), max(timestamp) FROM orders WHERE name LIKE 'o%' GROUP BY 1 ORDER BY 1"
            ).collect()
            rows.join(rows.select("offset"), "offset").write.parquet(f"{scratch}/rows")
            spark.read.parquet(f"{scratch}/rows").toArrow()
            source["startingOffsets"] = "earliest"
            stream = spark.readStream.format("penstock").options(**source).load()
            counts = stream.withWatermark("timestamp", "1 minute").groupBy("timestamp").count()
            query = counts.writeStream.format("noop").trigger(availableNow=True)
            query = query.option("checkpointLocation", f"{scratch}/checkpoint")
            query.start().awaitTermination()
        finally:
            gateway = spark.sparkContext._gateway
            spark.stop()
            assert gateway is not None  # a Java of ours, not a server's
            gateway.proc.stdin.close()  # which Java waits for before it ends
            gateway.proc.wait(EXIT_S_MAX)


if __name__ == "__main__":
    sys.exit(main())
