"""What docs/readers.md says of delta-rs, tried."""

from __future__ import annotations

import re
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError

from mirrorlake import Lake
from mirrorlake.paths import PROJECT

SAYS = {
    "none": "reads",
    "deletionVectors": "refuses",
    "columnMapping": "reads NULL in every column, and says nothing",
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
        return "reads NULL in every column, and says nothing"
    assert read["id"].to_pylist() == [7]
    return "reads"
