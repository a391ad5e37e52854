"""Is it seen which tables a query reads, before any Spark is started?"""

from __future__ import annotations

import pytest

from penstock.pipeline.declared.words import find_word, is_query, may_use, tables_of

READS = {
    "SELECT 1": (),
    "SELECT * FROM a": ("a",),
    "select x from A join b on a.x = b.x": ("a", "b"),
    "FROM a SELECT x": ("a",),
    "TABLE a": ("a",),
    "SELECT * FROM `strange name`": ("strange name",),
    "SELECT * FROM a, b AS c, (SELECT y FROM d) e, f": ("a", "b", "d", "f"),
    "SELECT a, b FROM c WHERE x IN (SELECT y FROM d, e) AND z > (SELECT max(q) FROM f)": (
        *("c", "d", "e", "f"),
    ),
    "SELECT x FROM a UNION ALL SELECT y, z FROM b UNION ALL TABLE c": ("a", "b", "c"),
    "SELECT 'x FROM no' -- FROM no\n, \"FROM no\" /* FROM no */ FROM yes": ("yes",),
    "SELECT extract(hour FROM t), trim(BOTH 'x' FROM u), substring(v FROM 2) FROM a": ("a",),
    "SELECT x IS DISTINCT FROM y FROM a": ("a",),
    "SELECT * FROM range(5)": (),
    "SELECT * FROM a LATERAL VIEW explode(b) t AS c, d": ("a",),
    "SELECT * FROM a, LATERAL (SELECT x FROM b)": ("a", "b"),
    "SELECT * FROM a LEFT OUTER JOIN (b) USING (k), c": ("a", "b", "c"),
    "SELECT * FROM a JOIN b ON f(a.x, a.y) = b.x, c": ("a", "b", "c"),
    "WITH x AS (SELECT * FROM a), y (k, l) AS (SELECT * FROM x) SELECT * FROM y JOIN b": ("a", "b"),
    "WITH a AS (SELECT * FROM a) SELECT * FROM a": ("a",),
    "SELECT * FROM delta.a": (),
    "SELECT * FROM VALUES (1, 2), (3, 4) AS t(x, y)": (),
    "SELECT * FROM a GROUP BY x, y ORDER BY z, w": ("a",),
    "SELECT count(*) OVER w FROM a WINDOW w AS (PARTITION BY x, y)": ("a",),
    "SELECT r'a\\' FROM a": ("a",),
    "SELECT `from`, `join` FROM a": ("a",),
    "SELECT x.from FROM a x": ("a",),
}


@pytest.mark.parametrize(("sql", "tables"), READS.items())
def test_the_tables_of_a_query_are_those_it_reads(sql: str, tables: tuple[str, ...]) -> None:
    assert tables_of(sql) == tables


@pytest.mark.parametrize("sql", [*READS, "(SELECT 1)", "VALUES (1)", "-- why\nSELECT 1"])
def test_a_query_is_known_as_one(sql: str) -> None:
    assert is_query(sql)


@pytest.mark.parametrize(
    "sql",
    [
        *(
            "",
            ";",
            "-- SELECT 1",
            "DROP TABLE x",
            "CREATE VIEW v AS SELECT 1",
            "INSERT INTO t SELECT 1",
        ),
        *(
            "FROM a INSERT INTO b SELECT *",
            "WITH x AS (SELECT 1) INSERT OVERWRITE t SELECT * FROM x",
        ),
        *("SET x = 1", "EXPLAIN SELECT 1", "UPDATE t SET x = 1", "ADD JAR 'x'"),
    ],
)
def test_what_would_change_something_is_no_query(sql: str) -> None:
    assert not is_query(sql)


def test_words_are_found_outside_of_comments_and_texts() -> None:
    sql = "SELECT 'group by' -- group by\n FROM a GROUP  BY x"
    assert sql[find_word(sql, "group", "by") :] == "GROUP  BY x"
    assert find_word(sql, "having") == 0


@pytest.mark.parametrize(
    ("sql", "uses"),
    [
        ("SELECT a.name FROM a", True),
        ("SELECT `Name` FROM a", True),
        ("SELECT * FROM a", True),
        ("SELECT a.* FROM a", True),
        ("SELECT struct(*) FROM a", True),
        ("FROM a", True),
        ("FROM a |> WHERE offset > 1", True),
        ("SELECT x FROM a UNION ALL TABLE b", True),
        ("SELECT x FROM a NATURAL JOIN b", True),
        ("SELECT count(*) FROM a", False),
        ("SELECT offset, 'name' FROM a -- name", False),
        ("WITH b AS (SELECT offset FROM a) SELECT offset FROM b", False),
        ("SELECT names FROM a", False),
    ],
)
def test_a_column_is_left_out_only_where_nobody_can_mean_it(sql: str, uses: bool) -> None:
    assert may_use(sql, "name") is uses
