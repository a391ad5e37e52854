"""Does every backend keep the contract of `Database`?"""

from __future__ import annotations

import pytest

from penstock.catalog.database.interface import Database
from tests.catalog.faults import OpenDatabase


class Trouble(Exception):
    pass


@pytest.fixture
def table(database: Database) -> Database:
    with database.transaction():
        database.execute("create table t (a bigint primary key, b text)")
    return database


def rows(database: Database) -> list[tuple[int, str]]:
    with database.transaction():
        return database.fetch("select a, b from t order by a")


def insert(database: Database, a: int, b: str = "x") -> int:
    return database.execute("insert into t (a, b) values ($1, $2)", a, b)


def test_execute_returns_the_number_of_rows_changed(table: Database) -> None:
    with table.transaction():
        assert insert(table, 1) == 1
        assert insert(table, 2) == 1
        assert table.execute("update t set b = $1", "y") == 2
        assert table.execute("delete from t where a = $1", 99) == 0
        assert table.execute("create table other (a bigint)") == 0


def test_arguments_are_bound_by_number_and_may_repeat(table: Database) -> None:
    with table.transaction():
        table.execute("insert into t (b, a) values ($2, $1)", 7, "seven")
        assert table.fetch("select $2, $1, $2, $1 from t where a = $1", 7, "s") == [
            ("s", 7, "s", 7)
        ]
    assert rows(table) == [(7, "seven")]


def test_a_skipped_conflict_counts_as_no_row(table: Database) -> None:
    sql = "insert into t (a, b) values ($1, $2) on conflict (a) do nothing"
    with table.transaction():
        assert table.execute(sql, 1, "first") == 1
        assert table.execute(sql, 1, "second") == 0
    assert rows(table) == [(1, "first")]


def test_execute_many_changes_a_row_for_each_set_of_arguments(table: Database) -> None:
    with table.transaction():
        sql = "insert into t (a, b) values ($1, $2)"
        assert table.execute_many(sql, [(n, str(n)) for n in range(500)]) == 500
        assert table.execute_many(sql, []) == 0
        assert table.execute_many("update t set b = $2 where a = $1", [(1, "y"), (900, "z")]) == 1
    assert len(rows(table)) == 500


def test_an_error_undoes_the_whole_outermost_transaction(table: Database) -> None:
    with pytest.raises(Trouble), table.transaction():
        insert(table, 1)
        with table.transaction():
            insert(table, 2)
        raise Trouble
    assert rows(table) == []


def test_an_error_in_a_nested_transaction_undoes_only_that_one(table: Database) -> None:
    with table.transaction():
        insert(table, 1)
        with pytest.raises(Trouble), table.transaction():
            insert(table, 2)
            with table.transaction():
                insert(table, 3)
            raise Trouble
        with table.transaction():
            insert(table, 4)
    assert [a for a, _ in rows(table)] == [1, 4]


def test_a_failed_statement_in_a_nested_transaction_leaves_the_outer_one_usable(
    table: Database,
) -> None:
    with table.transaction():
        insert(table, 1)
        with pytest.raises(Exception, match=r"(?i)unique"), table.transaction():
            insert(table, 1)
        insert(table, 2)
    assert [a for a, _ in rows(table)] == [1, 2]


def test_sql_outside_a_transaction_is_our_own_mistake(table: Database) -> None:
    with pytest.raises(AssertionError):
        insert(table, 1)
    with pytest.raises(AssertionError):
        table.fetch("select a from t")


def test_foreign_keys_are_enforced_and_cascade(database: Database) -> None:
    with database.transaction():
        database.execute("create table parent (a bigint primary key)")
        database.execute(
            "create table child (a bigint references parent (a) on delete cascade, b bigint)"
        )
        database.execute("insert into parent (a) values (1)")
        database.execute("insert into child (a, b) values (1, 1)")
    with pytest.raises(Exception, match=r"(?i)foreign key"), database.transaction():
        database.execute("insert into child (a, b) values (2, 2)")
    with database.transaction():
        database.execute("delete from parent where a = 1")
        assert database.fetch("select a from child") == []


def test_text_and_64_bit_integers_come_back_as_they_were(table: Database) -> None:
    values = [(2**63 - 1, "ünïcødé 🐍 'quoted' $1"), (-(2**63), ""), (0, "line\nbreak")]
    with table.transaction():
        for a, b in values:
            insert(table, a, b)
    assert sorted(rows(table)) == sorted(values)


def test_committed_rows_are_there_after_opening_again(open_database: OpenDatabase) -> None:
    database = open_database()
    with database.transaction():
        database.execute("create table t (a bigint primary key, b text)")
        insert(database, 1)
    database.close()
    database = open_database()
    assert rows(database) == [(1, "x")]
    database.close()
