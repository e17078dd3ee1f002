"""The statements of docs/readers.md and of docs/how-to/read-elsewhere.md about other readers."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, DeltaProtocolError

from helpers.environments import make_environment
from helpers.project import PROJECT
from mirrorlake import Lake

SAYS = {  # of `to_pyarrow_table`, and of `QueryBuilder`
    "none": ("reads", "reads"),
    "deletionVectors": ("refuses", "reads"),
    "columnMapping": ("returns NULL in every column, without an error", "reads"),
    "typeWidening": ("refuses", "refuses"),
    "v2Checkpoint": ("refuses", "reads"),
    "timestampNtz": ("reads", "reads"),
}
PROPERTIES = {
    "none": "'delta.enableRowTracking' = 'true', 'delta.enableChangeDataFeed' = 'true'",
    "deletionVectors": "'delta.enableDeletionVectors' = 'true'",
    "columnMapping": "'delta.columnMapping.mode' = 'name'",
    "typeWidening": "'delta.enableTypeWidening' = 'true'",
    "v2Checkpoint": "'delta.checkpointPolicy' = 'v2'",
    "timestampNtz": "'a' = 'b'",
}


@pytest.mark.long
def test_the_page_is_right_about_delta_rs(lake: Lake) -> None:
    page = (PROJECT / "docs" / "readers.md").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    rows = [row for row in cells if len(row) == 8]
    told = {re.sub("[`,].*", "", row[1].lstrip("`")): (row[4], row[5]) for row in rows}
    for feature, property_ in PROPERTIES.items():
        path = lake.storage.path(f"Tables/{feature}")
        kind = "TIMESTAMP_NTZ" if feature == "timestampNtz" else "BIGINT"
        lake.spark.sql(
            f"CREATE TABLE delta.`{path}` (id BIGINT, v {kind}) USING delta"
            f" TBLPROPERTIES ({property_})"
        )
        lake.spark.sql(f"INSERT INTO delta.`{path}` (id) VALUES (7)")
        assert told[feature] == SAYS[feature]
        assert (found(read_table, path), found(query_table, path)) == SAYS[feature]


def read_table(path: str) -> pa.Table:
    return DeltaTable(path).to_pyarrow_table()


def query_table(path: str) -> pa.Table:
    query = QueryBuilder().register("t", DeltaTable(path))
    return pa.table(query.execute("SELECT id, v FROM t").read_all())


def found(read: Callable[[str], pa.Table], path: str) -> str:
    try:
        rows = read(path)
    except DeltaError as error:
        if isinstance(error, DeltaProtocolError) or "Unsupported table feature" in str(error):
            return "refuses"
        raise
    if rows["id"].to_pylist() == [None]:
        return "returns NULL in every column, without an error"
    assert rows["id"].to_pylist() == [7]
    return "reads"


def test_a_mirrored_table_with_deletion_vectors_is_read_by_those_the_page_names(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["n"])
    publisher.insert([{"n": n, "v": "first"} for n in range(100)])
    lake.mirror()
    publisher.upsert([{"n": n, "v": "new"} for n in range(5)])
    publisher.delete([{"n": n} for n in range(90, 100)])
    lake.mirror()
    expected = sorted((row.n, row.v) for row in lake.table("t").read().collect())
    table = DeltaTable(lake.table("t").path)
    with pytest.raises(DeltaProtocolError):
        table.to_pyarrow_table()
    with pytest.raises(DeltaProtocolError):
        table.to_pyarrow_dataset()
    rows = QueryBuilder().register("t", table).execute("SELECT n, v FROM t").read_all()
    found = duckdb.from_arrow(pa.table(rows)).order("n").fetchall()
    assert found == expected
    assert len(expected) == 90


CODE = re.compile(r"^```python\n(.*?)```", re.MULTILINE | re.DOTALL)
# Executes one snippet per table and prints its rows, or None if the reader raised an error.
READER = """
import json, sys

def rows_of(found):
    name = next(n for n in ("to_pylist", "to_dicts", "to_dict") if hasattr(found, n))
    return getattr(found, name)(*["records"] * (name == "to_dict"))

snippet, read = sys.stdin.read(), {}
for path in sys.argv[1:]:
    place = {}
    try:
        exec(snippet.replace("my-lake/Tables/orders", path), place)
        read[path] = rows_of(place["orders"])
    except Exception as error:
        print(f"{path}: {error}", file=sys.stderr)
        read[path] = None
print(json.dumps(read, default=str))
"""


def tables_of_the_page(lake: Lake) -> dict[str, str]:
    """Create one table per row of the page; return their names by the row's first cell."""

    def publish(name: str, price: str = "price", **options: Any) -> None:
        publisher = lake.publisher(name, keys=["id"])
        publisher.insert([{"id": n, price: n % 3, "name": f"n{n}"} for n in range(6)])
        lake.mirror(**options)
        publisher.upsert([{"id": 1, price: 9, "name": "new"}])
        publisher.delete([3])
        lake.mirror()

    publish("vectors")
    publish("plain", deletion_vectors=False)
    publish("mapped", "unit price", deletion_vectors=False)
    lake.publisher("widened", types={"id": "int"}).insert([{"id": 1}])
    lake.mirror()
    lake.publisher("widened", widen=True, types={"id": "bigint"}).insert([{"id": 2**40}])
    lake.mirror(widen=True)
    query = "SELECT name, count(*) AS n, sum(price) AS total FROM plain GROUP BY name"
    for view in ("view", "other_view"):
        lake.views.create(view, query, deletion_vectors=view == "view")
    lake.publisher("plain").upsert([{"id": 2, "price": 5, "name": "n2"}])
    lake.publisher("plain").delete([4])
    lake.mirror()
    for view in ("view", "other_view"):
        assert lake.views.refresh(view, how="incremental").mode == "incremental"
    return {
        "with keys, as the mirror creates it": "vectors",
        "without keys, or `--no-deletion-vectors`": "plain",
        "`--no-deletion-vectors`, a column name with a space": "mapped",
        "widened (`mirror --widen`)": "widened",
        "incremental view": "view",
        "view `--no-deletion-vectors`": "other_view",
    }


def sorted_rows(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


@pytest.mark.long
def test_the_page_is_right_about_each_reader_and_its_snippets_run(lake: Lake) -> None:
    page = (PROJECT / "docs/how-to/read-elsewhere.md").read_text(encoding="utf-8")
    sections = [section.partition("\n") for section in page.split("\n## ")]
    snippets = {
        title: code[1] for title, _, text in sections if (code := CODE.search(text)) is not None
    }
    lines = [line for line in page.splitlines() if "|" in line]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    readers = [name.removesuffix(" (delta-rs)") for name in cells[0][1:]]
    assert list(snippets) == readers
    versions = page.partition("## Versions")[2].split("```")[1]
    installed = re.search("^pip install (.*)", page, re.MULTILINE)
    assert installed is not None
    assert {*installed[1].split()} <= {*versions.split()}
    python = make_environment("readers", *versions.split())
    tables = tables_of_the_page(lake)
    paths = {name: lake.table(name).path for name in tables.values()}
    expected = {}
    for name, path in paths.items():
        rows = lake.spark.read.format("delta").load(path).collect()
        expected[name] = sorted_rows([row.asDict() for row in rows])
    found: dict[str, list[str]] = {kind: [] for kind in tables}
    for reader in readers:
        done = subprocess.run(
            [str(python), "-c", READER, *paths.values()],
            input=snippets[reader],
            capture_output=True,
            text=True,
            check=True,
            cwd=lake.storage.root,
        )
        read = json.loads(done.stdout.splitlines()[-1])
        for kind, name in tables.items():
            rows = read[paths[name]]
            if rows is None:
                outcome = "refuses"
            elif sorted_rows(rows) == expected[name]:
                outcome = "reads"
            else:
                # pandas has NaN in place of NULL.
                assert all(v is None or v != v for row in rows for v in row.values()), rows
                outcome = "**NULL**"
            found[kind].append(outcome)
    assert found == {row[0]: row[1:] for row in cells[2:]}
