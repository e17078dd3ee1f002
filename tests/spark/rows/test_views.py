"""Views of a lake: changes of the views and of their sources, and interrupted refreshes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError

from helpers.quiet import QUIET, commit_quietly
from mirrorlake import Lake
from mirrorlake.delta import commits
from mirrorlake.delta.actions import live_files
from mirrorlake.errors import QueryError, UsageError
from mirrorlake.spark.jvm import items_of
from mirrorlake.views import definition, refresh, shape

SUMS = "SELECT g, count(*) AS n, sum(x) AS total FROM t GROUP BY g"
KILLER = """
import os, signal, sys
from mirrorlake import Lake
from mirrorlake.views.refresh import ViewStep
def kill(step):
    if step is ViewStep[sys.argv[2]]:
        os.kill(os.getpid(), signal.SIGKILL)
views = Lake(sys.argv[1]).views
if sys.argv[3] == "create":
    views.create("v", sys.argv[4], on_step=kill)
else:
    views.refresh("v", how="incremental", on_step=kill)
"""


class Killed(BaseException):
    """A kill. It is no `Exception`, so that no code handles it as a failure."""


def source(lake: Lake, name: str = "t", **more: Any) -> str:
    table = lake.create_table(name, {"id": "INT", "g": "STRING", "x": "INT"}, keys=["id"], **more)
    lake.spark.sql(f"INSERT INTO {table.sql_name} VALUES (1, 'a', 1), (2, 'a', 2), (3, 'b', 3)")
    return table.sql_name


def rows(lake: Lake, query: str = "SELECT * FROM v") -> set[tuple[Any, ...]]:
    found = [tuple(row) for row in lake.sql(query).collect()]
    assert len(found) == len(set(found))
    return set(found)


def follow(lake: Lake, view: str = "v") -> tuple[str, str]:
    """Refresh a view incrementally if possible, check it, and return its mode and reason."""
    done: refresh.Refresh = lake.views.refresh(view, how="incremental", check=True)
    assert done.differences == 0, done
    return done.mode, done.reason.code if done.reason else ""


def test_a_view_is_a_table_that_hides_what_its_rule_needs(lake: Lake) -> None:
    t = source(lake)
    made = lake.views.create("dbo.v", SUMS)
    assert repr(made) == "dbo.v: full, FIRST; rows: 2 inserted"
    assert lake.views.create("dbo.v", SUMS).mode == "nothing"  # the same query again
    assert [str(name) for name in lake.tables()] == ["t", "dbo.v"]
    assert repr(lake.views.list()) == f"[dbo.v: {SUMS}]"
    lake.spark.sql(f"INSERT INTO {t} VALUES (4, 'b', 4), (5, NULL, NULL)")
    explained = lake.views.explain("dbo.v")  # a full refresh of so small a table may be cheaper
    assert (explained.method, explained.sources[0].by) == ("sums", "feed")
    done = lake.views.refresh("dbo.v", how="incremental", check=True)
    assert done.sources == {"t": (1, 2)}
    assert (done.changed, done.differences) == (2, 0)
    assert done.rows == {"inserted": 1, "updated": 1, "deleted": 0}
    assert lake.views.refresh("dbo.v").mode == "nothing"
    now = {("a", 2, 3), ("b", 2, 7), (None, 1, None)}
    assert rows(lake, "SELECT * FROM dbo.v") == now
    joined = "SELECT w.g, now.n, w.n FROM dbo.v now JOIN DBO.V@v1 AS w ON now.g = w.g"
    assert rows(lake, joined) == {("a", 2, 2), ("b", 2, 1)}
    assert rows(lake, "SELECT v.total FROM dbo.v WHERE v.g IS NULL") == {(None,)}
    lake.frames.create("m", ["dbo.v"])
    view = lake.table("dbo.v")
    for read in (view.read(), view.read("total > 3", version=1), lake.frames.read("m", "DBO.V")):
        assert read.columns == lake.views.read("dbo.v").columns
    # A view of a view reads its change feed.
    lake.views.create("top", "SELECT g FROM dbo.v WHERE total > 3", deletion_vectors=False)
    assert rows(lake, "SELECT * FROM top") == {("b",)}
    lake.spark.sql(f"UPDATE {t} SET x = IF(id = 1, 9, 0) WHERE id = 1 OR g = 'b'")
    assert follow(lake, "dbo.v") == ("incremental", "")
    assert follow(lake, "top") == ("incremental", "")
    # This reader refuses tables with deletion vectors, such as that of the other view.
    assert DeltaTable(lake.table("top").path).to_pyarrow_table()["g"].to_pylist() == ["a"]
    with pytest.raises(DeltaProtocolError):
        DeltaTable(lake.table("dbo.v").path).to_pyarrow_table()
    for wrong, hint in (
        (lambda: lake.views.create("t", SUMS), "There is already a table t"),
        (lambda: lake.views.create("dbo.v", "SELECT 1 AS a FROM t"), "another query"),
        (lambda: lake.views.create("w", "SELECT 1 AS one"), "reads no table"),
        (lambda: lake.views.create("w", "SELECT * FROM nowhere"), "no table nowhere"),
        (lambda: lake.views.create("w", "SELECT a.id, b.id FROM t a JOIN t b USING (g)"), "name"),
        (lambda: lake.views.refresh("t"), "is a table, not a view"),
        (lambda: lake.views.refresh("top", how="magic"), "no refresh mode 'magic'"),
        (lambda: lake.write("top", [{"g": "x"}]), "is a view"),
        (lambda: lake.views.drop("dbo.v"), "The view top reads dbo.v"),
    ):
        with pytest.raises(UsageError, match=hint):
            wrong()
    with pytest.raises(QueryError, match="Spark can't analyze"):
        lake.views.create("w", "SELECT nothing FROM t")
    lake.views.create("before", "SELECT count(*) AS n, max(t.x) AS most FROM t@v1")
    assert rows(lake, "SELECT * FROM before") == {(3, 3)}
    assert lake.views.check("before").differences == 0
    lake.views.drop("before", apply=True)
    assert not lake.views.drop("top").applied
    assert lake.views.drop("top", apply=True).applied
    assert [str(view.name) for view in lake.views.list()] == ["dbo.v"]


OTHERS = {
    "kept": "SELECT id, x FROM t WHERE x > 1",
    "pairs": "SELECT a.id, b.x FROM t a JOIN t b ON a.g = b.g",
    "extremes": "SELECT g, min(x) AS least, max(x) AS most FROM t GROUP BY g",
    "counts": "SELECT g, count(DISTINCT x) AS some FROM t GROUP BY g",
}


@pytest.mark.parametrize(
    "others", [{}, pytest.param(OTHERS, marks=pytest.mark.long)], ids=["sums", "every method"]
)
def test_what_happens_to_a_source(
    lake: Lake, pytestconfig: pytest.Config, others: dict[str, str]
) -> None:
    """Each refresh is correct: it is incremental, or full with the expected reason."""
    t = source(lake)
    lake.views.create("v", SUMS)
    for name, query in others.items():
        lake.views.create(name, query)
    run = lake.spark.sql
    run(f"DELETE FROM {t} WHERE id = 1")
    run(f"RESTORE TABLE {t} TO VERSION AS OF 1")
    run(f"INSERT OVERWRITE {t} SELECT id + 1, g, x FROM {t}")
    run(f"OPTIMIZE {t}")
    run(
        f"ALTER TABLE {t} ADD COLUMN more INT"
    )  # a view that was created without the column does not change
    run(f"INSERT INTO {t} VALUES (7, 'c', 7, 7)")
    assert {follow(lake, view) for view in ("v", *others)} == {("incremental", "")}
    run(f"ALTER TABLE {t} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')")
    run(f"ALTER TABLE {t} DROP COLUMN id")
    run(f"UPDATE {t} SET x = 0 WHERE g = 'c'")
    assert follow(lake) == ("full", "SCHEMA_CHANGED")
    run(f"UPDATE {t} SET x = x + 1 WHERE g = 'a'")
    table = lake.table("t")
    last = commits.read_commit(lake.storage, "Tables/t", table.snapshot().version, files=True)
    assert last.files
    assert all(Path(change).name.startswith("cdc-") for change in last.files)  # change files
    for change in last.files:
        Path(table.path, change).unlink()
    assert follow(lake) == ("full", "FEED_VACUUMED")
    if not pytestconfig.getoption("--long"):
        return
    right = rows(lake)
    run(f"DELETE FROM {lake.table('v').sql_name} WHERE g = 'a'")  # another writer's commit
    run(f"UPDATE {t} SET x = x WHERE g = 'a'")
    assert follow(lake) == ("full", "VIEW_CHANGED")
    assert rows(lake) == right


def test_a_view_in_a_frame_keeps_its_columns(lake: Lake) -> None:
    source(lake)
    lake.views.create("v", SUMS)
    shown = lake.views.read("v").columns
    lake.frames.create("m", ["v"])
    table = lake.table("v").sql_name
    lake.spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('mirrorlake.view')")
    assert len(lake.sql("SELECT * FROM v").columns) > len(shown)  # it is no view any more
    assert lake.sql("SELECT * FROM v", frame="m").columns == shown


@pytest.mark.long  # test_views_model.py has such versions of each kind between the changes
def test_versions_without_changed_rows_are_followed(lake: Lake) -> None:
    t = source(lake)
    views = {"v": SUMS, "top": "SELECT g, total FROM v", "least": OTHERS["extremes"]}
    for name, query in views.items():
        lake.views.create(name, query)
    before = {name: rows(lake, f"SELECT * FROM {name}") for name in views}
    for kind in QUIET:
        commit_quietly(lake.table("t"), kind)
    for name in views:
        done = lake.views.refresh(name, how="incremental", check=True)
        assert (done.mode, done.changed, done.differences) == ("incremental", 0, 0), name
        assert done.rows == {"inserted": 0, "updated": 0, "deleted": 0}
        assert rows(lake, f"SELECT * FROM {name}") == before[name]
        assert lake.views.refresh(name).mode == "nothing"
    lake.spark.sql(f"UPDATE {t} SET x = 9 WHERE id = 1")
    commit_quietly(lake.table("t"), "property")
    assert {follow(lake, name) for name in views} == {("incremental", "")}
    assert rows(lake, "SELECT * FROM top") == {("a", 11), ("b", 3)}


@pytest.mark.long  # the model also has duplicate rows
@pytest.mark.parametrize("vectors", [True, False])
def test_copies_of_a_row_come_and_go_one_by_one(lake: Lake, vectors: bool) -> None:
    """Rows are deleted by deletion vectors, or by a MERGE if they are disabled."""
    t = source(lake)
    lake.spark.sql(f"INSERT INTO {t} VALUES (4, 'a', 1), (5, 'a', 1), (6, NULL, 1)")
    first = Counter([("a", 1), ("a", 2), ("b", 3), ("a", 1), ("a", 1), (None, 1)])
    name = "`odd v'é`"
    lake.views.create(name, "SELECT g AS `the g`, x FROM t")
    lake.table(name).changes.enable()
    if not vectors:
        without = "SET TBLPROPERTIES (delta.enableDeletionVectors = false)"
        lake.spark.sql(f"ALTER TABLE {lake.table(name).sql_name} {without}")

    def refreshed() -> tuple[refresh.Refresh, Counter[Any]]:
        done = lake.views.refresh(name, how="incremental")
        assert done.mode == "incremental"
        return done, Counter(tuple(row) for row in lake.views.read(name).collect())

    lake.spark.sql(f"DELETE FROM {t} WHERE id IN (1, 4)")
    lake.spark.sql(f"UPDATE {t} SET x = 9 WHERE g IS NULL OR id = 3")
    version = lake.table(name).snapshot().version + 1
    done, found = refreshed()
    assert done.version == version
    assert found == Counter([("a", 2), ("b", 9), ("a", 1), (None, 9)])
    assert (done.rows["inserted"] + done.rows["updated"]) == 2
    assert (done.rows["deleted"] + done.rows["updated"]) == 4
    # The change feed has the same changes for views of this view.
    signs = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
    net = {("a", 1): -2, ("b", 3): -1, ("b", 9): 1, (None, 1): -1, (None, 9): 1}
    for row in lake.table(name).changes.read(version).collect():
        net[row["the g"], row["x"]] -= signs[row["_change_type"]]
    assert set(net.values()) == {0}
    lake.spark.sql(f"INSERT INTO {t} VALUES (1, 'a', 1), (4, 'a', 1)")
    lake.spark.sql(f"UPDATE {t} SET x = CASE WHEN id = 3 THEN 3 ELSE 1 END WHERE x = 9")
    assert refreshed()[1] == first


def test_averages_of_decimals_are_rounded_as_spark_rounds_them(lake: Lake) -> None:
    kinds = {"a": "DECIMAL(15, 2)", "b": "DECIMAL(22, 14)", "c": "DECIMAL(3, 0)"}
    lake.create_table("t", {"g": "INT"} | kinds)
    t = lake.table("t").sql_name
    # 64 and 1,250 rows of a group make averages that end with the digit 5, which is rounded.
    values = ", ".join(
        f"CAST((pmod(xxhash64(id, {n}), 2000003) - 1000001) / {size} AS {kind}) AS {name}"
        for n, (size, (name, kind)) in enumerate(zip((100, 7, 2003), kinds.items(), strict=True))
    )
    for group, count in enumerate((1, 3, 7, 64, 64, 64, 1250, 1250)):
        lake.spark.sql(f"INSERT INTO {t} SELECT {group} AS g, {values} FROM range({count})")
    lake.views.create("v", "SELECT g, avg(a) AS a, avg(b) AS b, avg(c) AS c FROM t GROUP BY g")
    assert lake.views.explain("v").method == "sums"
    assert lake.views.check("v").differences == 0
    lake.spark.sql(f"UPDATE {t} SET a = -a, b = NULL, c = c + 1 WHERE a > 0")
    assert follow(lake) == ("incremental", "")


@pytest.mark.long  # test_views_states.py recreates another source
def test_a_view_of_extremes_that_kept_none_is_filled_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = source(lake)
    with monkeypatch.context() as before:  # as an earlier version of mirrorlake created it
        before.setattr(shape, "EXTREMES", frozenset())
        lake.views.create("v", "SELECT g, max(x) AS most FROM t GROUP BY g")
        assert lake.views.explain("v").method == "groups"
    lake.spark.sql(f"INSERT INTO {t} VALUES (4, 'z', 4)")
    assert follow(lake, "v") == ("full", "COLUMNS_CHANGED")
    lake.spark.sql(f"INSERT INTO {t} VALUES (5, 'z', 5)")
    assert follow(lake, "v") == ("incremental", "")


@pytest.mark.long
def test_groups_are_merged_where_there_are_no_deletion_vectors(lake: Lake) -> None:
    t = source(lake)
    extremes = "SELECT g, max(x) AS most FROM t GROUP BY g"
    windows = "SELECT id, rank() OVER (PARTITION BY g ORDER BY id) AS place FROM t"
    counts = "SELECT g, count(DISTINCT x) AS some FROM t GROUP BY g"
    views = {"sums": SUMS, "extremes": extremes, "counts": counts, "windows": windows}
    for name, query in views.items():
        lake.views.create(name, query)
        view = lake.table(name).sql_name
        lake.spark.sql(
            f"ALTER TABLE {view} SET TBLPROPERTIES (delta.enableDeletionVectors = false)"
        )
    lake.spark.sql(f"UPDATE {t} SET g = 'a', x = 9 WHERE id = 3")
    lake.spark.sql(f"INSERT INTO {t} VALUES (4, NULL, 4)")
    assert {follow(lake, view) for view in views} == {("incremental", "")}
    assert rows(lake, "SELECT * FROM sums") == {("a", 3, 12), (None, 1, 4)}
    assert rows(lake, "SELECT * FROM extremes") == {("a", 9), (None, 4)}
    assert rows(lake, "SELECT * FROM counts") == {("a", 3), (None, 1)}
    assert rows(lake, "SELECT * FROM windows") == {(1, 1), (2, 2), (3, 3), (4, 1)}
    for name in views:  # with a deletion vector the log would have a record
        files = live_files(lake.storage, f"Tables/{name}", lake.table(name).snapshot().version)
        assert not any(file.get("deletionVector") for file in files)


@pytest.mark.promise("RT-10")
def test_row_tracking_lets_a_view_follow_a_source_without_a_feed(lake: Lake) -> None:
    lake.write("t", [{"id": n, "g": "ab"[n % 2], "x": n} for n in range(4)])
    table = lake.table("t")
    t = table.sql_name
    lake.spark.sql(f"ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    lake.views.create("v", SUMS)
    lake.spark.sql(f"UPDATE {t} SET x = 10 WHERE id = 1")
    lake.spark.sql(f"DELETE FROM {t} WHERE id = 2")
    lake.spark.sql(f"INSERT INTO {t} VALUES (9, 'c', 9), (9, 'c', 9)")
    (state,) = lake.views.explain("v").sources
    assert (state.by, state.shown, state.newest) == ("row ids", 2, 5)
    done = lake.views.refresh("v", how="incremental", check=True)
    # An update is a deleted and an inserted row; the unchanged row does not count.
    assert (done.mode, done.changed, done.differences) == ("incremental", 5, 0)
    assert rows(lake) == {("a", 1, 0), ("b", 2, 13), ("c", 2, 18)}
    lake.spark.sql(f"ALTER TABLE {t} SET TBLPROPERTIES (delta.enableRowTracking = false)")
    lake.spark.sql(f"DELETE FROM {t} WHERE id = 9")
    assert follow(lake) == ("full", "FEED_OFF")


@pytest.mark.long
def test_a_views_table_is_put_together_and_restored(lake: Lake) -> None:
    t = source(lake)
    lake.views.create("v", SUMS)
    v = lake.table("v").sql_name
    lake.spark.sql(f"INSERT INTO {t} VALUES (4, 'b', 4)")
    assert follow(lake) == ("incremental", "")
    lake.spark.sql(f"OPTIMIZE {v}")
    lake.spark.sql(f"RESTORE TABLE {v} TO VERSION AS OF 1")
    assert lake.views.explain("v").sources[0].shown == 1
    assert follow(lake) == ("incremental", "")  # it shows the restored state


def test_an_exception_after_any_step(lake: Lake) -> None:
    """Before the commit nothing changes, after it everything; the next refresh completes it."""
    t = source(lake)

    def kill_at(step: refresh.ViewStep) -> Any:
        def kill(done: refresh.ViewStep) -> None:
            if done is step:
                raise Killed

        return kill

    with pytest.raises(Killed):
        lake.views.create("v", SUMS, on_step=kill_at(refresh.ViewStep.CREATED))
    assert rows(lake) == set()
    with pytest.raises(Killed):
        lake.views.create("v", SUMS, on_step=kill_at(refresh.ViewStep.COMMITTED))
    assert lake.views.create("v", SUMS).mode == "nothing"
    assert rows(lake) == {("a", 2, 3), ("b", 1, 3)}
    lake.spark.sql(f"UPDATE {t} SET x = x + 1")
    for step in (refresh.ViewStep.PINNED, refresh.ViewStep.DECIDED, refresh.ViewStep.READ):
        with pytest.raises(Killed):
            lake.views.refresh("v", how="incremental", on_step=kill_at(step))
    assert lake.views.explain("v").sources[0].shown == 1
    with pytest.raises(Killed):
        lake.views.refresh("v", how="incremental", on_step=kill_at(refresh.ViewStep.COMMITTED))
    assert lake.views.refresh("v", how="incremental", check=True).mode == "nothing"
    assert rows(lake) == {("a", 2, 5), ("b", 1, 4)}


def test_of_two_refreshes_from_one_state_only_one_counts(lake: Lake) -> None:
    t = source(lake)
    lake.views.create("v", SUMS)
    lake.spark.sql(f"INSERT INTO {t} VALUES (4, 'b', 4)")
    others = []

    def meanwhile(step: refresh.ViewStep) -> None:
        if step is refresh.ViewStep.READ and not others:
            others.append(True)
            others.append(lake.views.refresh("v", how="incremental"))

    done = lake.views.refresh("v", how="incremental", check=True, on_step=meanwhile)
    assert done.differences == 0
    assert done.version == others[1].version
    assert rows(lake) == {("a", 2, 3), ("b", 2, 7)}


@pytest.mark.long
@pytest.mark.parametrize("verb", ["create", "refresh"])
@pytest.mark.parametrize("step", [step.name for step in refresh.ViewStep])
@pytest.mark.parametrize("query", [SUMS, "SELECT id, g, x FROM t"], ids=["sums", "rows"])
def test_sigkill(lake: Lake, query: str, step: str, verb: str) -> None:
    if (verb, step) in (("create", "READ"), ("refresh", "CREATED")):
        pytest.skip("there is no such step")
    t = source(lake)
    if verb == "refresh":
        lake.views.create("v", query)
        lake.spark.sql(f"UPDATE {t} SET g = 'c' WHERE id = 1")
    command = [sys.executable, "-c", KILLER, lake.storage.root, step, verb, query]
    killed = subprocess.run(command, capture_output=True, check=False, env=dict(os.environ))
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    lake.spark.sql(f"INSERT INTO {t} VALUES (4, 'b', 4)")
    lake.views.create("v", query)
    done = lake.views.refresh("v", how="incremental", check=True)
    assert done.differences == 0
    (count,) = rows(lake, "SELECT count(*) FROM v")
    assert count == ((4,) if query != SUMS else (2 if verb == "create" else 3,))


def test_what_is_put_together_again_means_the_same(lake: Lake) -> None:
    """Incremental refreshes run the text of the syntax tree, not the author's."""
    lake.spark.range(3).selectExpr(
        "CAST(id AS INT) AS x",
        "IF(id = 1, NULL, concat('a_%', id, '\\\\d')) AS g",
        "TIMESTAMP '2024-02-29 12:34:56.789' AS d",
        "named_struct('f', id, 'l', array(id, 7)) AS st",
    ).createOrReplaceTempView("odd")
    written = r"""
        x::long + 5L, 1.5BD * x, 1e3, 2.5D, X'1F', x DIV 2, x / 2, x % 2, -x, ~x, x & 1 | 2,
        'it\'s', "double", r'\d', 'tab\there', 'a\\\\b', 'new\nline', '\u0041', 'one' ' and two',
        g LIKE 'a\\_%', g LIKE 'a/_%' ESCAPE '/', g LIKE ANY ('a%', 'b%'), g RLIKE '\\\\d$',
        x IS DISTINCT FROM 1, x <=> 1, g IS NOT NULL, x NOT IN (1, 2), x NOT BETWEEN 1 AND 2,
        NOT x = 1 AND x > 0 OR x < 5, ! (x == 1), x != 1, CASE x WHEN 1 THEN 'a' ELSE 'b' END,
        DATE '2024-02-29', d + INTERVAL 1 DAY 2 HOURS, d - INTERVAL 1 DAY 2 HOURS,
        d - INTERVAL '1-2' YEAR TO MONTH,
        extract(YEAR FROM d), date_add(d, 1), date_trunc('month', d), date_format(d, 'yyyy-MM'),
        to_date('2024/02/29', 'yyyy/MM/dd'), timestampdiff(DAY, d, d), dateadd(MONTH, 1, d),
        unix_timestamp(d), datediff(d, d), months_between(d, d), CAST(d AS TIMESTAMP_NTZ),
        CAST(x AS DECIMAL(10, 2)), TRY_CAST(g AS INT), CAST(x AS STRING), CAST(x AS TINYINT),
        x << 1, CAST(g AS VARCHAR(3)), CAST(g AS CHAR(9)), 10Y, 1.0e3BD, .5,
        CAST(st AS STRUCT<f: STRING, l: ARRAY<STRING>>), st.f, st.l[0], st['f'], (st).l,
        transform(st.l, v -> v + x), aggregate(st.l, 0L, (a, v) -> a + v), exists(st.l, v -> v = 7),
        named_struct('a', x).a, struct(x AS y, 1), array(1, 2)[1], array(x)[0], struct(x)['x'],
        named_struct('a', x)['a'], map('a', x)['a'],
        if(x > 1, 'a', 'b'), nvl(x, 0), nullif(x, 1), decode(x, 1, 'one', 'else'), left(g, 1),
        trim(BOTH 'a' FROM g), trim(g), substring(g, 2, 3), substr(g FROM 2), position('_' IN g),
        overlay(g PLACING 'z' FROM 2), split(g, '_'), regexp_extract(g, '(\\\\d)', 1), g || x,
        concat_ws(',', g, x), ceil(x), floor(2.55, 1), round(2.5), bround(2.5), log(2, 8), int(x),
        count(*) OVER (PARTITION BY x ORDER BY d DESC NULLS FIRST ROWS BETWEEN 1 PRECEDING AND
        CURRENT ROW), lag(x) IGNORE NULLS OVER (ORDER BY x)
    """
    query = definition.parse_query(f"SELECT {written} FROM odd ORDER BY x")
    again = ", ".join(map(definition.as_sql, query.items))
    found, expected = (
        lake.spark.sql(f"SELECT {text} FROM odd ORDER BY x").toDF(
            *(f"c{number}" for number in range(len(query.items)))
        )
        for text in (again, written)
    )
    assert found.dtypes == expected.dtypes
    assert found.collect() == expected.collect()


def test_every_aggregate_of_spark_is_known_as_one(lake: Lake) -> None:
    """An aggregate that is taken for a function of single rows would make a wrong view."""
    # A statement per function would take 20 times as long as these calls.
    session: Any = lake.spark
    registry = session._jsparkSession.sessionState().functionRegistry()
    names = items_of(registry.listFunction())
    kinds = {one.funcName(): registry.lookupFunction(one).get().getClassName() for one in names}
    aggregates = [name for name, kind in kinds.items() if ".expressions.aggregate." in kind]
    assert len(aggregates) > 50
    unknown = []
    for name in aggregates:
        (call,) = shape.find_calls(definition.parse_query(f"SELECT {name}(x) FROM t").tree)
        if not call.is_aggregate:
            unknown.append(name)
    assert unknown == []
