"""A SparkSession that works as it is: Java found, workers on this Python, loopback only.

Here, on a cluster, or through Spark Connect, which needs no Java on this side.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.pipeline.java import find_java, quiet_java
from penstock.pipeline.packages import check_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")

# What holds wherever Spark runs.
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what Delta tables hold
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
# Arrow on the JVM checks every access to a column twice. What comes here was checked when the log
# was read (checksums) and when Arrow built it.
_ARROW: Final = (
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)
# Of a driver that runs here, wherever its tasks do.
_DRIVER: Final = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.globalTempDatabase": "penstock",  # where `register` puts topics
    "spark.driver.extraJavaOptions": " ".join(
        (f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", *_ARROW)
    ),
}
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}
CONNECT: Final = "sc://"  # how the address of a Spark Connect server begins


def session(
    app: str = "penstock", *, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, or a new one; `conf` adds to the settings or replaces them.

    `master` is `local[*]`, a cluster such as `spark://host:7077`, or a Spark Connect server,
    `sc://host:15002`. Tasks that run on other machines read and write through `url`.
    """
    check_spark()
    if master.startswith(CONNECT):
        return _connected(app, master, conf or {})
    os.environ["JAVA_HOME"] = str(quiet_java(find_java()))
    # Else workers run on whatever python3 is first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(app)
    local = _LOCAL if master.startswith("local") else {}
    for key, value in {**_SETTINGS, **_DRIVER, **local, **(conf or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _connected(app: str, remote: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(remote).appName(app)
    for key, value in {**_SETTINGS, **conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
