"""The versions that a view shows, read from its log; the logs are written by hand."""

from __future__ import annotations

import json
import shutil
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.commits import write_lines
from helpers.least_table import make_table
from mirrorlake import sql
from mirrorlake.delta.commits import CommitLog
from mirrorlake.errors import QueryError, TableNotFoundError, UsageError
from mirrorlake.mirror import options
from mirrorlake.names import HIDDEN, TableName
from mirrorlake.query import statement
from mirrorlake.status import read_status
from mirrorlake.storage.files import Storage
from mirrorlake.views import api, definition, plan

T = TableName(None, "t")
VIEW = definition.Definition(TableName("s", "v"), "abc", "SELECT g FROM t", {T: ("g", "x")})


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path)


def commit(
    storage: Storage,
    version: int,
    operation: str,
    *actions: Any,
    view: definition.Definition = VIEW,
    **info: Any,
) -> None:
    told = {"commitInfo": {"operation": operation, **info}}
    write_lines(storage, version, told, *actions, log=f"{view.name.table_path}/_delta_log")


def create(storage: Storage, view: definition.Definition = VIEW) -> None:
    fields = [{"name": n, "type": "string"} for n in ("g", "__mirrorlake_rows")]
    metadata = {
        "id": "view",
        "schemaString": json.dumps({"fields": fields}),
        "configuration": {"mirrorlake.view": view.as_property()},
    }
    commit(storage, 0, "CREATE TABLE", {"metaData": metadata}, view=view)


def refresh(storage: Storage, version: int, number: int, at: int, base: int | None = None) -> None:
    sources = {"t": {"id": "one", "version": at}}
    base = version - 1 if base is None else base
    note = definition.commit_metadata(VIEW, number, base, {"mode": "full", "reason": None}, sources)
    txn = {"txn": {"appId": VIEW.app_id, "version": number}}
    commit(storage, version, "WRITE", txn, added(True), userMetadata=note)


def added(changes: bool) -> dict[str, Any]:
    return {"add": {"path": "part", "size": 1, "dataChange": changes}}


def test_a_view_without_its_source_names_the_fix(storage: Storage) -> None:
    with pytest.raises(
        TableNotFoundError, match=r"no table t in the lake, but the view s\.v reads"
    ) as missing:
        plan.pin_sources(storage, VIEW, {})
    with pytest.raises(TableNotFoundError, match="was dropped while its version") as dropped:
        plan.pin_sources(storage, VIEW, {}, {T: 0})
    assert missing.value.hint == dropped.value.hint == definition.GONE_FIX


@pytest.mark.parametrize("columns", [("g", "x"), ("g",)])
def test_a_view_whose_source_lacks_a_column_names_the_fix(
    columns: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(query: str) -> None:
        raise ValueError(query)

    session: Any = SimpleNamespace(sql=refuse)
    monkeypatch.setattr(plan, "known_functions", lambda session: frozenset())
    with pytest.raises(QueryError, match="Spark can't analyze") as refused:
        plan.make_plan(session, VIEW, [plan.Source(T, "t", "one", columns, 1)])
    assert ("drop the view" in refused.value.hint) == (columns == ("g",))


def standing(storage: Storage) -> tuple[int, int | None, str]:
    found: definition.ViewState = definition.read_view_state(storage, VIEW)
    shown = found.sources.get("t", (None, None))[1]
    return found.number, shown, found.reason.code if found.reason else ""


def test_a_definition_is_kept_in_its_table(storage: Storage) -> None:
    create(storage)
    assert definition.read_definition(storage, VIEW.name) == VIEW
    assert definition.list_definitions(storage) == [VIEW]
    assert definition.hiding_columns(storage, VIEW.name) == ["g"]
    assert definition.hiding_columns(storage, None) is None


def test_an_earlier_version_of_a_view_has_its_own_columns(storage: Storage) -> None:
    create(storage)
    names = ("g", "total", f"{HIDDEN}rows")
    schema = json.dumps({"fields": [{"name": name, "type": "string"} for name in names]})
    metadata = {"id": "view", "configuration": {"mirrorlake.view": VIEW.as_property()}}
    commit(storage, 1, "CHANGE COLUMN", {"metaData": metadata | {"schemaString": schema}})
    columns = partial(definition.hiding_columns, storage, VIEW.name)
    assert (columns(0), columns(1), columns()) == (["g"], ["g", "total"], ["g", "total"])
    created = CommitLog(storage, VIEW.name.table_path).timestamp(0)
    assert columns(created) == ["g"]
    # The columns of a query are those of the version that it reads.
    query = "SELECT * FROM v@v0 JOIN v ON v.g = 1"
    parsed = statement.parse_statement(query)
    edits = statement.resolve_tables(parsed, lambda _: statement.Relation("/v", columns))
    text = statement.apply_edits(parsed.text, edits)
    assert "(SELECT `g` FROM delta.`/v` VERSION AS OF 0) AS `v`" in text
    assert "(SELECT `g`, `total` FROM delta.`/v`) AS `v`" in text


def test_a_view_in_a_frame_has_the_columns_of_the_frame(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lake's own table of this name is not read: it may have changed or been dropped."""
    create(storage)
    framed = "Files/framed"
    shutil.move(Path(storage.path(VIEW.name.table_path)), Path(storage.path(framed)))
    monkeypatch.setattr(sql, "framed_log", lambda *_: framed)  # it checks the files with Spark
    done: list[str] = []
    spark: Any = SimpleNamespace(sql=done.append)
    sql.query_lake(spark, storage, "SELECT * FROM v", frame="m")
    assert f"(SELECT `g` FROM delta.`{storage.path(framed)}`) AS `v`" in done[0]


def test_reads_of_a_view_hide_its_columns(storage: Storage) -> None:
    class Rows(tuple[str, ...]):
        """The column names of a DataFrame."""

        @property
        def columns(self) -> Rows:
            return self

        def select(self, *names: str) -> Rows:
            return Rows(names)

    rows: Any = Rows(("g", f"{HIDDEN}rows"))
    assert options.hide_columns(rows, lambda: {options.VIEW_PROPERTY: "{}"}) == ("`g`",)
    assert options.hide_columns(rows, dict) is rows
    rows = Rows(("g",))
    assert options.hide_columns(rows, lambda: pytest.fail("not needed")) is rows


def test_a_mistyped_view_is_an_error_with_the_names_of_all(storage: Storage) -> None:
    with pytest.raises(TableNotFoundError, match=r"no view s.w .* create a view first\."):
        definition.read_definition(storage, TableName("s", "w"))
    create(storage)
    with pytest.raises(TableNotFoundError, match=r"no view s.w .* one of the lake's views: s.v\."):
        definition.read_definition(storage, TableName("s", "w"))
    make_table(storage, T)
    with pytest.raises(UsageError, match=r"t is a table, .* one of the lake's views: s.v\."):
        definition.read_definition(storage, T)


def test_views_to_refresh_can_be_one_text(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(storage)
    monkeypatch.setattr(api, "refresh_all", lambda storage, views, refresh: views)
    views = api.Views(storage, pytest.fail)
    for names in ("s.v", "S.V", "s.v, ", ["s.v"], ""):
        assert views.refresh_all(names) == [VIEW]


def test_a_view_stands_where_its_last_refresh_left_it(storage: Storage) -> None:
    create(storage)
    assert standing(storage) == (0, None, "FIRST")
    refresh(storage, 1, 1, at=4)
    assert standing(storage) == (1, 4, "")
    refresh(storage, 2, 2, at=7)
    commit(storage, 3, "OPTIMIZE", added(False))
    commit(storage, 4, "SET TBLPROPERTIES")
    assert standing(storage) == (2, 7, "")


def test_a_restored_view_shows_what_it_showed_then(storage: Storage) -> None:
    create(storage)
    refresh(storage, 1, 1, at=4)
    refresh(storage, 2, 2, at=7)
    commit(storage, 3, "RESTORE", added(True), operationParameters={"version": "1"})
    assert standing(storage) == (2, 4, "")  # and the next refresh is the third
    commit(storage, 4, "RESTORE", added(True), operationParameters={"timestamp": "2013-01-01"})
    assert standing(storage) == (2, None, "VIEW_CHANGED")


def test_a_view_is_behind_if_a_view_that_it_reads_is_behind(storage: Storage) -> None:
    upper = definition.Definition(
        TableName(None, "u"), "def", "SELECT g FROM s.v", {VIEW.name: ("g",)}
    )
    metadata = {"id": "one", "schemaString": '{"fields": []}', "configuration": {}}
    for version, age in enumerate((1000, 500)):
        told = {"commitInfo": {"timestamp": int((time.time() - age) * 1000)}}
        write_lines(
            storage, version, told, {"metaData": metadata}, log=f"{T.table_path}/_delta_log"
        )
    create(storage)
    refresh(storage, 1, 1, at=0)
    create(storage, upper)
    sources = {str(VIEW.name): {"id": "view", "version": 1}}
    note = definition.commit_metadata(upper, 1, 0, {"mode": "full", "reason": None}, sources)
    txn = {"txn": {"appId": upper.app_id, "version": 1}}
    commit(storage, 1, "WRITE", txn, added(True), userMetadata=note, view=upper)
    found = definition.view_status(storage, upper)
    assert (found.state, round(found.lag_seconds or 0, -2)) == ("behind", 500)


def test_how_a_view_stands(storage: Storage) -> None:
    def source(version: int, table_id: str, age: float) -> None:
        metadata = {"id": table_id, "schemaString": '{"fields": []}', "configuration": {}}
        now = int((time.time() - age) * 1000)
        lines = [{"commitInfo": {"timestamp": now}}, {"metaData": metadata}]
        path = f"{T.table_path}/_delta_log/{version:020d}.json"
        storage.write(path, "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def status() -> tuple[str, str | None, int | None, float | None]:
        found = definition.view_status(storage, VIEW)
        (one,) = found.sources
        lag = found.lag_seconds
        return found.state, found.reason, one.newest, lag if lag is None else round(lag, -2)

    create(storage)
    source(0, "one", 1000)
    assert status() == ("unknown", "FIRST", 0, None)
    refresh(storage, 1, 1, at=0)
    assert status() == ("current", None, 0, 0)
    source(1, "one", 500)
    source(2, "one", 100)
    assert status() == ("behind", None, 2, 500)
    source(2, "another", 100)
    assert status() == ("unknown", "SOURCE_RECREATED", 2, None)
    storage.delete_folder(T.table_path)
    assert status() == ("unknown", "SOURCE_GONE", None, None)
    lake = read_status(storage, lambda _: pytest.fail("No query was given"))
    assert [str(one) for one in lake.problems] == [
        f"{VIEW.name}: The view can't be refreshed, because its source {T} was removed."
        " Fix: undrop the table, or drop the view."
    ]


def test_what_others_write_is_noticed(storage: Storage) -> None:
    create(storage)
    refresh(storage, 1, 1, at=4)
    commit(storage, 2, "DELETE", added(True), userMetadata="[not a note")
    assert standing(storage) == (1, 4, "VIEW_CHANGED")
    refresh(storage, 3, 2, at=7, base=1)  # a refresh that did not read version 2
    assert standing(storage) == (2, 7, "VIEW_CHANGED")
    refresh(storage, 4, 3, at=8)
    assert standing(storage) == (3, 8, "")


def test_a_log_that_was_cut_off_tells_nothing(storage: Storage) -> None:
    create(storage)
    refresh(storage, 1, 1, at=4)
    commit(storage, 2, "OPTIMIZE", added(False))
    path = f"{VIEW.name.table_path}/_delta_log/{1:020d}.json"
    kept = storage.read(path)
    storage.write(path, b'{"add":{"path":"part","size":1,"dataChange":false}}\n')
    assert standing(storage)[1:] == (None, "STATE_LOST")
    storage.write(path, kept)
    assert standing(storage) == (1, 4, "")
