"""Requirements for every source; a new source needs a `Case` here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, MutableMapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from helpers.landed import folder_of, landed_files, landed_rows
from mirrorlake import Lake
from mirrorlake_sources import (
    CsvDrops,
    DebeziumFiles,
    Group,
    Journal,
    Position,
    Source,
    read_reports,
    run_source,
)

TABLES = ("orders", "lines")


class Case:
    """A source under test: creates the source and its data."""

    def __init__(self, root: Path, folder: Path, shop: Any) -> None:
        self.root, self.folder, self.shop = root, folder, shop
        folder.mkdir()
        self.begin()

    def begin(self) -> None:
        """Prepare the source before it has data."""

    def source(self) -> Source:
        """Return the source as a new process would create it."""
        raise NotImplementedError

    def insert(self, first: int, last: int) -> None:
        """Add rows with these ids to both tables."""
        raise NotImplementedError


class PostgresCase(Case):
    def begin(self) -> None:
        for table in TABLES:
            self.shop.sql(f"CREATE TABLE {table} (id int)")

    def source(self) -> Source:
        return self.shop.source(*TABLES)

    def insert(self, first: int, last: int) -> None:
        rows = "; ".join(f"INSERT INTO {t} SELECT generate_series({first}, {last})" for t in TABLES)
        self.shop.sql(f"BEGIN; {rows}; COMMIT")


class CsvCase(Case):
    """One file of each table grows; a copy of it appears as well."""

    def source(self) -> Source:
        return CsvDrops(self.folder, types={table: {"id": "integer"} for table in TABLES})

    def insert(self, first: int, last: int) -> None:
        for table in TABLES:
            path = self.folder / table / "a.csv"
            path.parent.mkdir(exist_ok=True)
            old = path.read_text() if path.exists() else "id\n"
            if path.exists():
                (path.parent / f"copy-{first}.csv").write_text(old)
            path.write_text(old + "".join(f"{id}\n" for id in range(first, last + 1)))


class DebeziumCase(Case):
    def source(self) -> Source:
        return DebeziumFiles(self.folder, Lake(self.root).storage)

    def insert(self, first: int, last: int) -> None:
        with (self.folder / "events.jsonl").open("a") as file:
            for number in range(first, last + 1):
                for table in TABLES:
                    file.write(json.dumps(event(table, number)) + "\n")


class JournalCase(Case):
    def begin(self) -> None:
        self.journal = Journal(Lake(self.root).storage, "shop")

    def source(self) -> Source:
        return self.journal.source()

    def insert(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.journal.append(json.dumps([event(table, number) for table in TABLES]).encode())


def event(table: str, number: int) -> dict[str, Any]:
    row = [{"type": "int32", "optional": False, "field": "id"}]
    schema = {"type": "struct", "fields": [{"type": "struct", "fields": row, "field": "after"}]}
    payload = {"before": None, "after": {"id": number}, "source": {"table": table}, "op": "c"}
    return {"schema": schema, "payload": payload}


CASES = {
    "postgres": PostgresCase,
    "csv": CsvCase,
    "debezium files": DebeziumCase,
    "debezium journal": JournalCase,
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    shop = request.getfixturevalue("shop") if request.param == "postgres" else None
    root = shop.root if shop else tmp_path / "lake"
    return CASES[request.param](root, tmp_path / "drops", shop)


def run(case: Case, **options: Any) -> None:
    assert not run_source(Lake(case.root).storage, case.source(), **options).failed


def assert_landed(case: Case, last: int) -> None:
    for table in TABLES:
        ids = Counter(row["id"] for row in landed_rows(case.root, table))
        assert ids == Counter(range(1, last + 1)), table


def test_everything_lands_once(case: Case) -> None:
    case.insert(1, 5)
    run(case)
    assert_landed(case, 5)
    files = {table: landed_files(case.root, table) for table in TABLES}
    run(case)
    assert {table: landed_files(case.root, table) for table in TABLES} == files
    case.insert(6, 9)
    run(case)
    assert_landed(case, 9)


class _CrashError(Exception):
    """Ends a run like a kill."""


class Crashing:
    """A source whose process ends after a number of batches, or before the confirmation."""

    def __init__(self, inner: Source, batches: int | None) -> None:
        self._inner = inner
        self._left = batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> Crashing:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)

    def changes(
        self, since: MutableMapping[Any, Position], stop: Event, *, once: bool
    ) -> Generator[Group, None, None]:
        for group in self._inner.changes(since, stop, once=once):
            if self._left is not None and len(group.batches) >= self._left > 0:
                yield Group(group.batches[: self._left])
                raise _CrashError
            yield group

    def confirm(self, end: Any) -> None:
        if self._left is None:
            raise _CrashError
        self._inner.confirm(end)


@pytest.mark.parametrize("batches", [1, None])
def test_a_crash_between_two_files_or_before_the_confirmation(
    case: Case, batches: int | None
) -> None:
    case.insert(1, 3)
    run(case)
    for last in (5, 7):
        case.insert(last - 1, last)
        try:
            run_source(Lake(case.root).storage, Crashing(case.source(), batches))  # type: ignore[arg-type]
        except _CrashError:
            pass
        else:
            assert batches is None  # a source that has nothing to confirm
    run(case)
    assert_landed(case, 7)


def test_it_watches_until_it_is_stopped(case: Case) -> None:
    case.insert(1, 3)
    stop = Event()
    told = []

    def on_report(report: Any) -> None:
        told.append(report)
        if sum(one.rows for one in report.tables) >= 6:
            stop.set()

    run(case, once=False, stop=stop, on_report=on_report)
    assert_landed(case, 3)
    (report,) = read_reports(Lake(case.root).storage)
    assert (report.state, report.failed) == ("Stopped", False)
    assert {one.table for one in report.tables} == set(TABLES)


def test_its_name_is_the_same_at_each_start(case: Case) -> None:
    names = []
    for _ in range(2):
        with case.source() as source:
            names.append(source.name)
    assert len(set(names)) == 1


def test_a_stopped_table_leaves_the_others_alone(case: Case) -> None:
    """Another publisher writes into a folder: the table stops before a file is written."""
    Lake(case.root).publisher("orders").insert([{"id": 77}])
    case.insert(1, 3)
    report = run_source(Lake(case.root).storage, case.source())
    assert {one.table: one.state for one in report.tables} == {
        "orders": "Stopped",
        "lines": "Running",
    }
    assert [row["id"] for row in landed_rows(case.root, "orders")] == [77]
    assert len(list(folder_of(case.root, "orders").glob("*.parquet"))) == 1
    assert sorted(row["id"] for row in landed_rows(case.root, "lines")) == [1, 2, 3]
