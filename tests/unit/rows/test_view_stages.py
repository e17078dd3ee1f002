"""The stages of a query return the same rows as the query itself, according to DuckDB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from helpers.examples import examples
from helpers.staged_queries import S_ROWS, SHAPES, T_ROWS, TABLES, limited
from mirrorlake.names import StageName, TableName
from mirrorlake.views import definition, stages

VIEW = TableName("dbo", "v")
TYPES = {"g": "string", "n": "int"}
SOURCES = {TableName(None, name): {n: TYPES[n] for n in names} for name, names in TABLES.items()}
ROWS = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "A"]), st.sampled_from([None, 0, 1, 2, 3])),
    max_size=6,
)


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as found:
        yield found


def in_duckdb(sql: str) -> str:
    tree = sqlglot.parse_one(sql, read="spark")
    for join in tree.find_all(exp.Join):
        if join.kind in ("SEMI", "ANTI"):
            join.set("side", None)
    return tree.sql("duckdb")


def fill(engine: duckdb.DuckDBPyConnection, **tables: list[tuple[Any, ...]]) -> None:
    for name, rows in tables.items():
        engine.execute(f"CREATE OR REPLACE TABLE {name} (g VARCHAR, n INT)")
        if rows:
            engine.executemany(f"INSERT INTO {name} VALUES (?, ?)", rows)


def staged(sql: str) -> list[stages.Stage]:
    return stages.read_stages(sql, VIEW, SOURCES, ["g", "n"])


def test_a_key_of_another_type_is_not_grouped() -> None:
    query = "SELECT g, n FROM t WHERE n > (SELECT sum(n) FROM s WHERE s.g = t.g)"
    assert len(staged(query)) == 2
    # The texts '1' and '01' both equal the number 1.
    sources = SOURCES | {TableName(None, "t"): {"g": "int", "n": "int"}}
    assert not stages.read_stages(query, VIEW, sources, ["g", "n"])


def check(engine: duckdb.DuckDBPyConnection, sql: str, found: list[stages.Stage]) -> None:
    for number, stage in enumerate(found, 1):
        name = StageName(VIEW.schema, VIEW.name, number)
        engine.execute(f'CREATE OR REPLACE TABLE "{name}" AS {in_duckdb(stage.sql)}')
        columns = engine.execute(f'DESCRIBE "{name}"').fetchall()
        assert [column[0] for column in columns] == list(stage.columns)
    there = Counter(engine.execute(f'SELECT * FROM "{name}"').fetchall())
    wanted = engine.execute(in_duckdb(stages.break_ties(sql, ["g", "n"]))).fetchall()
    assert there == Counter(wanted), [stage.sql for stage in found]


@pytest.mark.parametrize(("sql", "count"), SHAPES.values(), ids=SHAPES)
def test_each_shape_has_stages(engine: duckdb.DuckDBPyConnection, sql: str, count: int) -> None:
    found = staged(sql)
    assert len(found) == count, found
    for t in (T_ROWS, T_ROWS[:4], []):
        for s in (S_ROWS, S_ROWS[:3], []):
            fill(engine, t=t, s=s)
            check(engine, sql, found)


@examples(40)
@given(sql=limited(), t=ROWS, s=ROWS)
def test_random_queries_equal_their_stages(sql: str, t: Any, s: Any) -> None:
    if not (found := staged(sql)):
        return
    with duckdb.connect(config={"threads": 1}) as engine:
        fill(engine, t=t, s=s)
        check(engine, sql, found)


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
    "SELECT g, n FROM (SELECT g, sum(n) AS n FROM t GROUP BY ROLLUP (g)) q",
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
