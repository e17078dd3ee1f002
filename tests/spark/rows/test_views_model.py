"""Views against their reference model: every shape with every kind of change, and random queries.

One refresh of a shape tests many cases, each with a number in the column `example`. The first five
cases are the golden matrix, with one kind of change each; hypothesis generates the others.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st

from helpers.examples import listed
from helpers.quiet import QUIET, commit_quietly
from helpers.searches import fail_search
from helpers.views_model import VIEWS
from mirrorlake import Lake
from mirrorlake.delta import key_search
from mirrorlake.delta.actions import live_files
from mirrorlake.views import apply, reduction

KINDS = {1: "insert", 2: "update", 3: "delete", 4: "merge", 5: "nothing"}
QUICK = ["sums", "joined_extremes", "groups", "left_join", "windows"]  # one of each method
REST = [name for name in VIEWS if name not in QUICK]
T_START = [(1, "a", 1), (2, "a", 5), (2, "a", 5), (3, "b", None), (4, None, 2)]
S_START = [("a", 1), ("b", 2), ("b", 3), (None, 4), ("z", 5)]
KEYS = st.sampled_from([None, "a", "b", "`"])
VALUES = st.sampled_from([None, -1, 0, 1, 5])
IDS = st.integers(0, 3)
T_ROWS = st.lists(st.tuples(IDS, KEYS, VALUES), max_size=5)
S_ROWS = st.lists(st.tuples(KEYS, st.sampled_from([1, 2])), max_size=3)
CASES = st.tuples(
    T_ROWS,
    S_ROWS,
    st.dictionaries(IDS, st.none() | st.tuples(KEYS, VALUES), max_size=3),  # None: deleted
    T_ROWS,
    st.sets(KEYS, max_size=2),  # the rows that are deleted from s
    S_ROWS,
)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tables of views count as large; they are small in other tests."""
    monkeypatch.setattr(apply, "_FILTERED_ROWS", 1)
    monkeypatch.setattr(apply, "_READ_ROWS", 0)
    monkeypatch.setattr(apply, "_KEPT_ROWS", 2)


class Tables:
    """The tables t and s of a lake, and their rows as lists."""

    def __init__(self, lake: Lake) -> None:
        self.spark = lake.spark
        self.t: list[tuple[Any, ...]] = []
        self.s: list[tuple[Any, ...]] = []
        kinds = {"example": "INT", "id": "INT", "g": "STRING", "x": "INT"}
        self.in_lake = {"t": lake.create_table("t", kinds)}
        kinds = {"example": "INT", "g": "STRING", "w": "INT"}
        self.in_lake["s"] = lake.create_table("s", kinds)
        self.t_path, self.s_path = (table.path for table in self.in_lake.values())

    def quietly(self, table: str, kind: str) -> None:
        """Commit a version that changes no row."""
        commit_quietly(self.in_lake[table], kind)

    def insert(self, t: list[tuple[Any, ...]], s: list[tuple[Any, ...]]) -> None:
        self.t += t
        self.s += s
        for rows, kinds, path in (
            (t, "example INT, id INT, g STRING, x INT", self.t_path),
            (s, "example INT, g STRING, w INT", self.s_path),
        ):
            frame = self.spark.createDataFrame(rows, kinds).coalesce(1)
            frame.write.format("delta").mode("append").save(path)

    def run(self, statement: str) -> None:
        self.spark.sql(statement.format(t=f"delta.`{self.t_path}`", s=f"delta.`{self.s_path}`"))

    def update_and_delete(self, changes: dict[tuple[int, int], Any], lost: set[Any]) -> None:
        """Update and delete rows of t by example and id, and delete rows of s by example and g."""
        rows = [(e, i, *(new or (None, None)), new is None) for (e, i), new in changes.items()]
        kinds = "example INT, id INT, g STRING, x INT, gone BOOLEAN"
        self.spark.createDataFrame(rows, kinds).createOrReplaceTempView("changed")
        self.run(
            "MERGE INTO {t} t USING changed c ON t.example = c.example AND t.id = c.id"
            " WHEN MATCHED AND c.gone THEN DELETE"
            " WHEN MATCHED THEN UPDATE SET g = c.g, x = c.x"
        )
        kept = [row for row in self.t if changes.get(row[:2], row) is not None]
        self.t = [(*row[:2], *changes[row[:2]]) if row[:2] in changes else row for row in kept]
        if lost:
            self.spark.createDataFrame(list(lost), "example INT, g STRING").createOrReplaceTempView(
                "lost"
            )
            self.run(
                "MERGE INTO {s} s USING lost c ON s.example = c.example AND s.g <=> c.g"
                " WHEN MATCHED THEN DELETE"
            )
            self.s = [row for row in self.s if row[:2] not in lost]


def golden(tables: Tables) -> None:
    """Return the changes of the first five cases."""
    tables.insert([(1, 5, "b", 7), (1, 6, "z", 1), (1, 2, "a", 5)], [(1, "c", 9)])
    tables.quietly("t", "property")
    tables.run("UPDATE {t} SET x = coalesce(x, 0) + 10, g = 'b' WHERE example = 2 AND id IN (1, 4)")
    tables.quietly("t", "compact")
    tables.run("UPDATE {s} SET w = w + 1 WHERE example = 2 AND g = 'b'")
    tables.quietly("s", "column")
    tables.run("DELETE FROM {t} WHERE example = 3 AND id IN (2, 3)")
    tables.quietly("t", "miss")
    tables.run("DELETE FROM {s} WHERE example = 3 AND g = 'a'")
    tables.run(
        "MERGE INTO {t} t USING (SELECT * FROM VALUES (1, 'a', -3), (2, NULL, NULL), (9, 'b', 4)"
        " AS v (id, g, x)) c ON t.example = 4 AND t.id = c.id"
        " WHEN MATCHED AND c.g IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET x = c.x"
        " WHEN NOT MATCHED THEN INSERT (example, id, g, x) VALUES (4, c.id, c.g, c.x)"
    )
    updated = {
        (2, 1, "a", 1): (2, 1, "b", 11),
        (2, 4, None, 2): (2, 4, "b", 12),
        (4, 1, "a", 1): (4, 1, "a", -3),
    }
    gone = [(3, 2), (3, 3), (4, 2)]
    tables.t = [updated.get(row, row) for row in tables.t if row[:2] not in gone]
    tables.t.append((4, 9, "b", 4))
    in_s = [row for row in tables.s if row[:2] != (3, "a")]
    tables.s = [(e, g, w + 1) if (e, g) == (2, "b") else (e, g, w) for e, g, w in in_s]


@pytest.mark.parametrize(
    "names", [QUICK, pytest.param(REST, marks=pytest.mark.long)], ids=["quick", "rest"]
)
def test_every_shape_follows_every_kind_of_change(
    lake: Lake, names: list[str], pytestconfig: pytest.Config
) -> None:
    views = {name: VIEWS[name] for name in names}
    tables = Tables(lake)
    numbered = list(enumerate(listed(CASES, 40), len(KINDS) + 1))
    t = [(e, *row) for e in KINDS for row in T_START]
    s = [(e, *row) for e in KINDS for row in S_START]
    t += [(e, *row) for e, case in numbered for row in case[0]]
    s += [(e, *row) for e, case in numbered for row in case[1]]
    tables.insert(t, s)
    for name, (method, query, _) in views.items():
        done = lake.views.create(name, query)
        assert (done.mode, done.reason.code if done.reason else "") == ("full", "FIRST")
        assert done.sources.keys() <= {"t", "s"}
        assert lake.views.explain(name).method == method
    tables.quietly("t", "vorder")
    tables.quietly("s", "miss")
    check_views(lake, tables, names if pytestconfig.getoption("--long") else names[:1])
    golden(tables)
    changed = {(e, i): new for e, case in numbered for i, new in case[2].items()}
    lost = {(e, g) for e, case in numbered for g in case[4]}
    tables.update_and_delete(changed, lost)
    tables.insert(
        [(e, *row) for e, case in numbered for row in case[3]],
        [(e, *row) for e, case in numbered for row in case[5]],
    )
    check_views(lake, tables, names)


def check_views(lake: Lake, tables: Tables, names: list[str]) -> None:
    """Refresh the views incrementally and compare them with their models."""
    for name in names:
        done = lake.views.refresh(name, how="incremental")
        assert (done.mode, done.reason) == ("incremental", None), name
        found = Counter(tuple(row) for row in lake.views.read(name).collect())
        expected = VIEWS[name][2](tables.t, tables.s)
        for example in {row[0] for row in [*found, *expected]}:
            there = Counter({row: n for row, n in found.items() if row[0] == example})
            wanted = Counter({row: n for row, n in expected.items() if row[0] == example})
            assert there == wanted, (name, KINDS.get(example, example))


SOURCES = [
    "t",
    "t JOIN s ON t.g = s.g",
    "t LEFT JOIN s ON t.g <=> s.g AND w > 1",
    "s RIGHT JOIN t ON s.g = t.g",
    "t JOIN t u ON t.id = u.id LEFT SEMI JOIN s ON s.g = t.g",
]
FILTERS = ["", " WHERE t.x > 0", " WHERE NOT coalesce(t.x = 1, false)", " WHERE t.d IS NOT NULL"]
PLAIN = ["t.id", "t.g AS h", "t.x + 1 AS y", "upper(t.g) AS `odd, name`", "t.f", "t.d * 2 AS dd"]
SUMS = ["sum(t.x)", "count(t.d)", "avg(t.x)", "sum(t.d) / count(*)", "avg(t.d)", "count_if(t.x>0)"]
KEPT = [*SUMS, "max(t.d)", "min(t.x)", "max(t.g)", "min(t.id) FILTER (WHERE t.x > 0)"]
ANEW = [
    "min(t.f)",
    "max(DISTINCT t.d)",
    "count(DISTINCT t.x)",
    "sum(t.f)",
    "avg(t.f)",
    "stddev(t.f)",
]


@st.composite
def queries(draw: st.DrawFn) -> str:
    """Generate a query of one of the supported shapes."""
    source = draw(st.sampled_from(SOURCES)) + draw(st.sampled_from(FILTERS))
    shape = draw(st.sampled_from(["rows", "distinct", "sums", "anew", "having", "window"]))
    plain = draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=3, unique=True))
    if shape in ("rows", "distinct"):
        distinct = "DISTINCT " if shape == "distinct" else ""
        return f"SELECT {distinct}{', '.join(plain)} FROM {source}"
    if shape == "window":
        over = "OVER (PARTITION BY t.g ORDER BY t.x, t.id)"
        windows = f"dense_rank() {over} AS r, count(*) {over} AS c"
        return f"SELECT {', '.join(plain)}, {windows} FROM {source}"
    pool = {"anew": ANEW + KEPT, "sums": KEPT}.get(shape, SUMS)
    some = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3, unique=True))
    named = [f"{text} AS a{number}" for number, text in enumerate(some)]
    keys = draw(st.sampled_from([["t.g"], ["upper(t.g)", "t.x % 2"]]))
    having = " HAVING count(*) > 1" if shape == "having" else ""
    shown = [f"{key} AS k{number}" for number, key in enumerate(keys)]
    group = f" GROUP BY {', '.join(keys)}{having}"
    return f"SELECT {', '.join(shown + named)} FROM {source}{group}"


CHANGES = st.lists(
    st.sampled_from(
        [
            "INSERT INTO {t} (id, g, x, d, f)"
            " VALUES (9, 'a', 1, 2.5, 0), (9, 'a', 1, 2.5, 0), (8, NULL, 2, 1, 1)",
            "UPDATE {t} SET x = x + 1, d = NULL WHERE id % 2 = 0",
            "UPDATE {t} SET g = 'b' WHERE g = 'a'",
            "DELETE FROM {t} WHERE x = 1",
            "DELETE FROM {t} WHERE g IS NULL",
            "INSERT INTO {s} (g, w) VALUES ('b', 7), (NULL, 8)",
            "UPDATE {s} SET w = w - 1",
            "DELETE FROM {s} WHERE g = 'a'",
        ]
    ),
    min_size=3,
    max_size=3,
    unique=True,
)
# After each change: which table gets a version without changed rows, and of what kind.
BETWEEN = st.lists(
    st.tuples(st.sampled_from(["t", "s"]), st.sampled_from(QUIET)), min_size=4, max_size=4
)


def test_old_rows_of_a_source_come_from_the_new_ones(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduction, "LARGE_BYTES", -1)
    made: list[str] = []
    compute = reduction._old_rows
    monkeypatch.setattr(reduction, "_old_rows", lambda *given: made.append("") or compute(*given))
    names = {
        name: lake.create_table(name, {"g": "STRING", "n": "INT"}).sql_name for name in ("t", "s")
    }
    run = lambda statement: lake.spark.sql(statement.format(**names))  # noqa: E731
    run("INSERT INTO {t} VALUES ('a', 1), ('b', 2), ('b', 2), (NULL, 3), ('c', 4)")
    run("INSERT INTO {s} VALUES ('a', 1), ('b', 1), ('b', 1), (NULL, 1), ('b', NULL)")
    queries = {
        "v0": "SELECT t.g, t.n FROM {} LEFT SEMI JOIN {} ON t.g = s.g AND s.n > 0",
        "v1": "SELECT t.g, t.n, s.n AS m FROM {} LEFT JOIN {} ON t.g = s.g",
    }
    for name, query in queries.items():
        lake.views.create(name, query.format("t", "s"))
    for statement in (
        "DELETE FROM {s} WHERE g = 'b' AND n = 1",  # two equal rows; a third row of the key stays
        "INSERT INTO {s} VALUES ('b', 5), ('b', 5), ('c', 1), ('c', NULL)",
        "UPDATE {s} SET n = 7 WHERE g IN ('a', 'b') AND n = 5",
    ):
        run(statement)
        run("UPDATE {t} SET n = n + 1 WHERE g = 'c'")
        follow_all(lake, list(queries.values()))
    assert len(made) == 6


@pytest.mark.parametrize("fails", [False, True], ids=["found", "failed"])
def test_duckdb_finds_the_rows_that_changes_can_match(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    def counted(search: Any, session: Any, key: str, keys: Any) -> Any:
        searched.append((search.folder, key, paths(search.files)))
        return run(search, session, key, keys)

    def paths(files: Any) -> frozenset[str]:
        return frozenset(add["path"] for add in files)

    searched: list[tuple[str, str, frozenset[str]]] = []
    run = fail_search if fails else key_search.KeySearch.run
    monkeypatch.setattr(reduction, "LARGE_BYTES", -1)
    monkeypatch.setattr(key_search, "MANY_ROWS", 0)
    monkeypatch.setattr(key_search.KeySearch, "run", counted)
    kinds = {"g": "STRING", "n": "INT", "w": "BIGINT"}
    names = {name: lake.create_table(name, kinds).sql_name for name in ("t", "s")}
    run_sql = lambda statement: lake.spark.sql(statement.format(**names))  # noqa: E731
    run_sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    rows = "('b', 2), ('b', 2), (NULL, 3), ('c', 4), ('d', 2) AS r(g, n)"
    run_sql(f"INSERT INTO {{t}} SELECT g, n, n FROM VALUES ('a', 1), {rows}")
    rows = "('b', 1), ('b', 1), (NULL, 1), ('b', NULL) AS r(g, n)"
    run_sql(f"INSERT INTO {{s}} SELECT g, n, n FROM VALUES ('a', 1), {rows}")
    run_sql("DELETE FROM {t} WHERE g = 'd'")
    queries = [
        "SELECT t.g, t.n FROM t LEFT SEMI JOIN s ON t.G = s.g AND s.n > 0",
        "SELECT t.g, t.n, s.n AS m FROM t LEFT JOIN s ON t.n = s.N",
        "SELECT t.g, count(*) AS c, sum(s.n) AS n FROM t JOIN s ON t.g = s.g AND t.n = s.n"
        " GROUP BY t.g",
        "SELECT t.g, s.n AS m FROM t JOIN s ON t.n = s.w",  # the types differ
    ]
    queries = queries[:1] if fails else queries
    for number, query in enumerate(queries):
        lake.views.create(f"v{number}", query)
    run_sql("DELETE FROM {s} WHERE g = 'b' AND n = 1")
    run_sql("INSERT INTO {s} VALUES ('b', 2, 3000000000), ('b', 5, 3), ('c', 4, 4), (NULL, 2, 1)")
    follow_all(lake, queries)
    old = paths(live_files(lake.storage, "Tables/s", lake.table("s").version))
    run_sql("UPDATE {t} SET n = 5 WHERE n = 2")
    run_sql("UPDATE {s} SET n = n + 1 WHERE n = 5")
    follow_all(lake, queries)
    assert {key for _, key, _ in searched} == ({"g"} if fails else {"g", "n"})
    assert fails or any(files == old for folder, _, files in searched if folder == "Tables/s")
    assert fails == ("DuckDB failed, so Spark reads the table: " in caplog.text)


def test_few_rows_in_the_driver_equal_the_computed_ones(lake: Lake) -> None:
    values = (
        "CAST(n AS TINYINT) AS a, n / 3BD AS b, date'1582-10-10' AS c, double('NaN') AS d,"
        " X'00FF' AS e, timestamp'1400-02-28 00:00:00.000001' AS f,"
        " timestamp_ntz'2024-01-01 12:00:00' AS g,"
        " array(n, NULL) AS h, map('k', struct(n AS x)) AS i, CAST(NULL AS STRING) AS j,"
        " parse_json('{\"k\": [1]}') AS l, interval '2 3' day to hour AS o"
    )
    every = lake.spark.sql(f"SELECT n, {values} FROM range(3) AS r(n)")
    assert apply.few_rows(every, 2) is None
    found = apply.few_rows(every, 3)
    assert found is not None
    few, count = found
    assert (count, few.schema) == (3, every.schema)
    assert str(few.sort("n").collect()) == str(every.sort("n").collect())  # NaN is not NaN
    assert few.alias("a").join(few.alias("b"), "n").where("a.a > 0").count() == 2
    nothing = apply.few_rows(every.where("n > 5"), 3)
    assert nothing is not None
    assert (nothing[0].collect(), nothing[1]) == ([], 0)


@pytest.mark.long
def test_random_queries_equal_their_recomputation(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if all tables were large. The other tests do not reduce their small tables.
    monkeypatch.setattr(reduction, "LARGE_BYTES", -1)
    monkeypatch.setattr(key_search, "MANY_ROWS", 0)
    chosen = listed(queries(), 16)[1:]  # the first is always the simplest
    changes, between = listed(st.tuples(CHANGES, BETWEEN), 2)[-1]
    kinds = {"id": "INT", "g": "STRING", "x": "INT", "d": "DECIMAL(15, 2)", "f": "DOUBLE"}
    tables = {"t": lake.create_table("t", kinds)}
    tables["s"] = lake.create_table("s", {"g": "STRING", "w": "INT"})
    names = {name: table.sql_name for name, table in tables.items()}
    run = lambda statement: lake.spark.sql(statement.format(**names))  # noqa: E731
    run(
        "INSERT INTO {t} VALUES (1, 'a', 1, 1.25, 0.5), (2, 'a', NULL, 2.5, 1.5),"
        " (3, 'b', 5, NULL, 2.5), (4, NULL, 7, 1, NULL), (4, NULL, 7, 1, NULL), (5, 'c', 2, 3, 1)"
    )
    run("INSERT INTO {s} VALUES ('a', 1), ('b', 2), ('b', 3), (NULL, 4), ('z', 5)")
    for number, query in enumerate(chosen):
        lake.views.create(f"v{number}", query)
    for at, (table, kind) in enumerate(between):
        commit_quietly(tables[table], kind)
        if at == 0:  # no row has changed yet
            follow_all(lake, chosen)
        if at < len(changes):
            run(changes[at])
    follow_all(lake, chosen)


def follow_all(lake: Lake, queries: list[str]) -> None:
    """Refresh the views of these queries incrementally and compare them with full results."""
    for number, query in enumerate(queries):
        done = lake.views.refresh(f"v{number}", how="incremental", check=True)
        assert done.differences == 0, query
        assert done.mode in ("incremental", "nothing"), query
