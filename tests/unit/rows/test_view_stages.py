"""The stages of a query return the same rows as the query itself, according to DuckDB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
import sqlglot
from sqlglot import exp

from helpers.examples import under_long
from helpers.least_table import make_table
from helpers.staged_queries import (
    S_ROWS,
    SHAPES,
    T_ROWS,
    TABLES,
    random_query,
    random_rows,
)
from mirrorlake import sql
from mirrorlake.names import StageName, TableName
from mirrorlake.storage.files import Storage
from mirrorlake.views import definition, stages

VIEW = TableName("dbo", "v")
TYPES = {"g": "string", "n": "int"}
Rows = list[tuple[Any, ...]]
SOURCES = {TableName(None, name): {n: TYPES[n] for n in names} for name, names in TABLES.items()}


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as found:
        fill(found, t=[], s=[])
        yield found


def in_duckdb(sql: str) -> str:
    tree = sqlglot.parse_one(sql, read="spark")
    for join in tree.find_all(exp.Join):
        if join.kind in ("SEMI", "ANTI"):
            join.set("side", None)
    for group in tree.find_all(exp.Group):
        if group.find(exp.Rollup, exp.Cube, exp.GroupingSets):
            # Spark returns no total of a table without rows, and DuckDB one.
            group.parent_select.having("count(*) > 0", copy=False)
    return tree.sql("duckdb")


def fill(engine: duckdb.DuckDBPyConnection, **tables: Rows) -> None:
    for name, rows in tables.items():
        engine.execute(f"CREATE OR REPLACE TABLE {name} (g VARCHAR, n INT)")
        if rows:
            values = ", ".join(map(str, rows)).replace("None", "NULL")
            engine.execute(f"INSERT INTO {name} VALUES {values}")


def staged(sql: str) -> list[stages.Stage]:
    return stages.read_stages(sql, VIEW, SOURCES, ["g", "n"])


def test_a_key_of_another_type_is_not_grouped() -> None:
    query = "SELECT g, n FROM t WHERE n > (SELECT sum(n) FROM s WHERE s.g = t.g)"
    assert len(staged(query)) == 2
    # The texts '1' and '01' both equal the number 1.
    sources = SOURCES | {TableName(None, "t"): {"g": "int", "n": "int"}}
    assert not stages.read_stages(query, VIEW, sources, ["g", "n"])


def check(
    engine: duckdb.DuckDBPyConnection,
    sql: str,
    found: list[stages.Stage],
    contents: Iterable[tuple[Rows, Rows]],
) -> None:
    """Compare a query with its stages, for several contents of the tables t and s."""
    for number, stage in enumerate(found, 1):
        name = StageName(VIEW.schema, VIEW.name, number)
        columns = ", ".join(f'"{column}"' for column in stage.columns)
        view = f"SELECT {columns} FROM ({in_duckdb(stage.sql)})"
        engine.execute(f'CREATE OR REPLACE VIEW "{name}" AS {view}')
    query = in_duckdb(stages.break_ties(sql, ["g", "n"]))
    for t, s in contents:
        fill(engine, t=t, s=s)
        there, wanted = (engine.execute(text).fetchall() for text in (f'FROM "{name}"', query))
        assert Counter(there) == Counter(wanted), (t, s, sql, *(stage.sql for stage in found))


@pytest.mark.parametrize(("sql", "count"), SHAPES.values(), ids=SHAPES)
def test_each_shape_has_stages(engine: duckdb.DuckDBPyConnection, sql: str, count: int) -> None:
    found = staged(sql)
    assert len(found) == count, found
    check(engine, sql, found, product((T_ROWS, T_ROWS[:4], []), (S_ROWS, S_ROWS[:3], [])))


@pytest.mark.parametrize("seeds", [range(100), *under_long(range(100, 2000))], ids=repr)
def test_random_queries_equal_their_stages(engine: duckdb.DuckDBPyConnection, seeds: range) -> None:
    number = 0
    for seed in seeds:
        random = Random(seed)
        sql = random_query(random)
        if found := staged(sql):
            number += 1
            contents = [(random_rows(random), random_rows(random)) for _ in range(2)]
            check(engine, f"{sql} -- seed {seed}", found, contents)
    assert number > len(seeds) / 2


def test_the_older_syntax_of_grouping_sets_has_the_same_stages() -> None:
    for old, new in (
        ("g, n WITH ROLLUP", "ROLLUP (g, n)"),
        ("g, n WITH CUBE", "CUBE (g, n)"),
        ("g, n GROUPING SETS ((g), n)", "GROUPING SETS ((g), n)"),
    ):
        found = staged(f"SELECT g, n FROM t GROUP BY {old}")
        assert found == staged(f"SELECT g, n FROM t GROUP BY {new}") != []


UNSUPPORTED = [
    "SELECT g, n FROM t WHERE n > 1 OR g IN (SELECT g FROM s)",
    "SELECT g, n FROM t WHERE n = (SELECT s.n FROM s WHERE s.g = t.g)",  # perhaps several rows
    "SELECT g, n FROM t WHERE n < (SELECT sum(s.n) FROM s WHERE s.n < t.n)",
    "SELECT g, (SELECT coalesce(sum(s.n), 0) FROM s WHERE s.g = t.g) AS n FROM t",
    "SELECT g, n FROM t WHERE EXISTS (SELECT * FROM s)",
    "SELECT g, n FROM t ORDER BY n LIMIT 2",
    "SELECT g, count(*) AS n FROM t GROUP BY g LIMIT 2",
    "SELECT g, n FROM (SELECT g, n FROM t ORDER BY n LIMIT 2) q",
    "SELECT g, n FROM (SELECT g, n + rand() AS n FROM t) q",
    "SELECT g, n FROM (SELECT g, first(n) AS n FROM t GROUP BY g) q",
    "SELECT g, n FROM (SELECT g, explode(array(n)) AS n FROM t) q",
    "SELECT g, grouping_id() AS n FROM t GROUP BY ROLLUP (g)",
    "SELECT DISTINCT g, count(*) AS n FROM t GROUP BY ROLLUP (g)",
    f"SELECT g, n FROM t GROUP BY CUBE (g, {', '.join(f'n + {k}' for k in range(40))})",
    "SELECT g, count(*) AS n FROM t GROUP BY ROLLUP (1)",
    "SELECT g, n FROM t NATURAL JOIN (SELECT g FROM s GROUP BY g) q",
    "SELECT q.g, s.n FROM t, (SELECT g FROM s GROUP BY g) q RIGHT JOIN s ON q.g = s.g",
    "SELECT g, n FROM (SELECT * FROM t VERSION AS OF 1) q",
    "WITH RECURSIVE q AS (SELECT g, n FROM t UNION ALL SELECT g, n + 1 FROM q) SELECT * FROM q",
    "SELECT upper(g) AS g, n FROM (SELECT g, sum(n) n FROM t GROUP BY g) GROUP BY g, n",
    "SELECT n AS g, g AS n FROM (SELECT g, sum(n) AS n FROM t GROUP BY g) q ORDER BY n + 1 LIMIT 2",
]


@pytest.mark.parametrize("sql", UNSUPPORTED)
def test_other_queries_have_no_stages(sql: str) -> None:
    assert staged(sql) == []


def test_a_definition_with_stages_is_read_again() -> None:
    found = staged(SHAPES["scalar"][0])
    made = definition.Definition(VIEW, "id", "…", {}, tuple(stage.sql for stage in found))
    first, last = made.chain
    t, s = SOURCES
    assert (str(first.name), first.id, list(first.sources)) == ("dbo.v/1", "id-1", [s])
    assert (last.name, last.id, list(last.sources)) == (VIEW, "id", [t, first.name])
    assert '"format": 2' in made.as_property()
    assert '"format": 1' in definition.Definition(VIEW, "id", "…", {}).as_property()
    other = TableName(None, "v")  # a query cannot read the stages of another view
    assert [one.name for one in definition.parse_query(last.sql, other).tables] == [t]


def test_sql_maintains_the_stages_of_a_view_as_well(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(storage, TableName(None, "v"))
    stage = StageName(None, "v", 1)
    make_table(storage, stage)
    done: list[object] = []
    for words in sql._COMPACTING:  # the real functions start Spark
        monkeypatch.setitem(sql._COMPACTING, words, lambda table: done.append(table.name))
    spark: Any = SimpleNamespace(sql=done.append)
    for statement in ("OPTIMIZE {}", "REORG TABLE {} APPLY (PURGE)", "DESCRIBE DETAIL {}"):
        sql.query_lake(spark, storage, statement.format("v"))
    path = f"delta.`{storage.path('Tables/v')}`"
    assert done == [
        *(f"OPTIMIZE {path}", stage),
        *(f"REORG TABLE {path} APPLY (PURGE)", stage),
        f"DESCRIBE DETAIL {path}",
    ]
