"""The statements of docs/readers.md about delta-rs."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaProtocolError

from helpers.project import PROJECT
from mirrorlake import Lake

SAYS = {
    "none": "reads",
    "deletionVectors": "refuses",
    "columnMapping": "returns NULL in every column, without an error",
    "typeWidening": "refuses",
    "v2Checkpoint": "refuses",
    "timestampNtz": "reads",
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
    told = {re.sub("[`,].*", "", row[1].lstrip("`")): row[4] for row in cells if len(row) == 7}
    for feature, property_ in PROPERTIES.items():
        path = lake.storage.path(f"Tables/{feature}")
        kind = "TIMESTAMP_NTZ" if feature == "timestampNtz" else "BIGINT"
        lake.spark.sql(
            f"CREATE TABLE delta.`{path}` (id BIGINT, v {kind}) USING delta"
            f" TBLPROPERTIES ({property_})"
        )
        lake.spark.sql(f"INSERT INTO delta.`{path}` (id) VALUES (7)")
        assert told[feature] == SAYS[feature]
        assert found(Path(path)) == SAYS[feature]


def found(path: Path) -> str:
    try:
        read = DeltaTable(path).to_pyarrow_table()
    except DeltaProtocolError:
        return "refuses"
    if read["id"].to_pylist() == [None]:
        return "returns NULL in every column, without an error"
    assert read["id"].to_pylist() == [7]
    return "reads"


def test_a_mirrored_table_with_deletion_vectors_is_read_by_those_the_page_names(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["n"])
    publisher.insert([{"n": n, "v": "first"} for n in range(100)])
    lake.mirror(deletion_vectors=True)
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
