"""Topics under names of SQL: `SELECT … FROM penstock.orders`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.model.errors import RefusedError
from penstock.pipeline.connecting import origin_of
from penstock.pipeline.source.options import Connection
from penstock.pipeline.tables.reading import DEFAULT_PATH, table_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE: Final = "penstock"
_SETTING: Final = "spark.sql.globalTempDatabase"


def register(
    spark: SparkSession,
    topics: str | Sequence[str] = (),
    *,
    path: str | Path | None = None,
    url: str | None = None,
    user: str = "",
    password: str = "",
    token: str = "",
    tenant: str = "",
    names: str | None = None,
    where: str | None = None,
) -> list[str]:
    """Let SQL find topics, all of them if none is named, as `penstock.TOPIC`; their names in SQL.

    Each is the table of its topic as it is now; register again to see later records. All sessions
    of the same Spark have them.
    """
    if spark.conf.get(_SETTING) != NAMESPACE:
        raise RefusedError(
            f"this Spark keeps views that sessions share in {spark.conf.get(_SETTING)!r}: start it "
            f"with penstock.pipeline.session(), or with the setting {_SETTING} {NAMESPACE}"
        )
    wanted = tuple([topics] if isinstance(topics, str) else topics)
    files = None if url else Path(path or DEFAULT_PATH).absolute()
    connection = Connection(files, url or "", user, password=password, token=token, tenant=tenant)
    options = {"names": names, "where": where}
    chosen = {key: text for key, text in options.items() if text is not None}
    found = []
    states = origin_of(connection).states(wanted)
    for topic in dict.fromkeys(state.topic for state in states):
        name = f"`{topic.replace('`', '``')}`"
        rows = table_at(spark, connection, topic, chosen)
        rows.createOrReplaceGlobalTempView(name)
        found.append(f"{NAMESPACE}.{name}")
    return found
