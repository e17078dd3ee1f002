"""Landing zones written by hand, and another reader of our tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from helpers.markers import MARKER
from helpers.tables import describe_history
from mirrorlake import Lake
from mirrorlake.names import file_name


@pytest.mark.promise("LZ-02", "LZ-07")
def test_a_zone_written_by_hand_is_readable_by_delta_rs(lake: Lake) -> None:
    folder = Path(lake.landing_zone) / "employees"
    folder.mkdir(parents=True)
    (folder / "_metadata.json").write_text('{"keyColumns": ["EmployeeID"]}')
    load = {"EmployeeID": ["E1", "E2", "E3"], "City": ["Redmond"] * 3}
    changes = {
        MARKER: [1, 2, 4],
        "EmployeeID": ["E1", "E2", "E4"],
        "City": ["Bellevue", None, "Ulm"],
    }
    for number, (data, codec) in enumerate(
        [
            (load, "none"),
            (changes, "snappy"),
            ({**load, "City": ["Oslo"] * 3, MARKER: [4] * 3}, "gzip"),
            ({MARKER: [2], "EmployeeID": ["E4"]}, "zstd"),
        ],
        1,
    ):
        pq.write_table(pa.table(data), folder / file_name(number), compression=codec)
    report = lake.mirror(deletion_vectors=False)
    assert not report.failed
    found = DeltaTable(lake.storage.path("Tables/employees")).to_pyarrow_table()
    rows = sorted(found.to_pylist(), key=lambda row: row["EmployeeID"])
    assert rows == [{"EmployeeID": f"E{n}", "City": "Oslo"} for n in (1, 2, 3)]


def test_the_log_reader_agrees_with_spark_past_a_checkpoint(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    for number in range(4):
        publisher.insert([{"id": number, "n": number}])
        assert not lake.mirror().failed
        if number == 0:
            often = "ALTER TABLE {} SET TBLPROPERTIES ('delta.checkpointInterval' = '3')"
            lake.spark.sql(often.format(lake.table("t").sql_name))
    table = lake.table("t")
    snapshot = table.snapshot()
    (newest,) = describe_history(table).limit(1).collect()
    assert snapshot.version == newest.version == 5
    assert list(snapshot.schema) == table.read().columns
    assert (Path(table.path) / "_delta_log" / "_last_checkpoint").exists()
    assert list(snapshot.txns.values()) == [4]
    properties = {
        r.key: r.value for r in lake.spark.sql(f"SHOW TBLPROPERTIES {table.sql_name}").collect()
    }
    assert snapshot.properties.items() <= properties.items()
