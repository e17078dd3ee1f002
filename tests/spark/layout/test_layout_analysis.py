"""The analysis against a slow look at every file, and against defects of other writers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from helpers.analyses import MICROSOFT, rows
from helpers.delta_by_hand import HandMade
from mirrorlake import Lake
from mirrorlake.cli import main as cli
from mirrorlake.errors import UsageError

ODD = "Tables/odd 'n [x] *{a}"
ONE = pa.table({"id": [1, 2, 3]})


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with a table of odd names, partitions, deletion vectors and checkpoints."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    path = lake.storage.path(ODD)
    properties = {
        "delta.enableRowTracking": "true",
        "delta.enableDeletionVectors": "true",
        "delta.columnMapping.mode": "name",
        "delta.checkpointPolicy": "v2",
        "delta.checkpointInterval": "2",
    }
    listed = ", ".join(f"'{k}' = '{v}'" for k, v in properties.items())
    lake.spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, at TIMESTAMP, n STRUCT<`a.b`: INT,"
        " l: ARRAY<STRING>>, `o d` DECIMAL(30, 3), part STRING) USING delta PARTITIONED BY (part)"
        f" TBLPROPERTIES ({listed})"
    )
    for load in range(3):
        lake.spark.sql(
            f"INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ id,"
            f" TIMESTAMP '2024-01-01' + MAKE_INTERVAL(0, 0, 0, {load}),"
            " STRUCT(INT(id), ARRAY('x')), id * 1.5, 'a b%/' || id % 2"
            f" FROM RANGE({load * 10}, {load * 10 + 10})"
        )
    lake.spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 10 = 3")
    return lake


@pytest.fixture(scope="module")
def analysis(odd: Lake) -> Any:
    return odd.table(ODD.removeprefix("Tables/")).analyze(exact=True)


@pytest.mark.promise("DL-13")
def test_four_levels_of_an_odd_table(odd: Lake, analysis: Any) -> None:
    folder = Path(odd.storage.path(ODD))
    paths = sorted(folder.glob("**/*.parquet"))
    paths = [p for p in paths if "_delta_log" not in p.parts]
    files = rows(analysis, "Parquet Files")
    assert [folder / f["Parquet File"] for f in files] == paths
    for found, path in zip(files, paths, strict=True):
        metadata = pq.read_metadata(path)
        assert found["Rows In File"] == metadata.num_rows
        assert found["Row Groups"] == metadata.num_row_groups
        assert found["Created By"] == metadata.created_by
        assert found["File Size"] == path.stat().st_size
        assert found["Codec"] == "SNAPPY"
        assert json.loads(found["Partition"])["part"] in ("a b%/0", "a b%/1")
    # 30 rows were written, 3 lie under deletion vectors.
    assert sum(f["Row Count"] for f in files) == 27
    assert sum(f["Deleted Rows"] for f in files) == 3
    assert analysis.summary["Row Count"] == odd.table(ODD.removeprefix("Tables/")).read().count()
    assert analysis.summary["Deletion Vectors"] == 3
    assert analysis.summary["Stale Files"] == 0

    groups, chunks = rows(analysis, "Row Groups"), rows(analysis, "Column Chunks")
    wanted = [(p, pq.read_metadata(p)) for p in paths]
    assert [g["Row Count"] for g in groups] == [m.row_group(0).num_rows for _, m in wanted]
    assert [
        (c["Compressed Size"], c["Uncompressed Size"], c["Value Count"], c["Dict Offset"])
        for c in chunks
    ] == [
        (c.total_compressed_size, c.total_uncompressed_size, c.num_values, c.dictionary_page_offset)
        for _, m in wanted
        for c in map(m.row_group(0).column, range(m.num_columns))
    ]
    assert {c["Column Name"] for c in chunks} == {
        *("id", "at", "n.a.b", "n.l.list.element", "o d", "part")
    }
    assert all("RLE" in c["Encodings"] for c in chunks)
    assert {c["Column Name"] for c in chunks if c["Has Dict"]} >= {"at", "part"}
    assert all(c["DictPageCompressedSize"] > 0 for c in chunks if c["Has Dict"])
    needed = analysis.chunks_needed(["n", "id"]).collect()
    assert {c["Column Name"] for c in needed} == {"id", "n.a.b", "n.l.list.element"}
    assert len(needed) == 3 * len(paths)


def test_columns_by_values_runs_and_overlap(analysis: Any) -> None:
    columns = {c["Column Name"]: c for c in rows(analysis, "Columns")}
    cardinality = {name: c["Cardinality"] for name, c in columns.items()}
    assert cardinality == {
        "id": 27,
        "at": 3,
        "n.a.b": 27,
        "n.l.list.element": None,
        "o d": 27,
        "part": 2,
    }
    assert columns["id"]["Cardinality Of Total Rows"] == 100
    assert columns["id"]["Total Table Rows"] == 27
    assert (columns["id"]["Runs"], columns["at"]["Runs"], columns["part"]["Runs"]) == (30, 6, 6)
    assert columns["at"]["Rows Per Run"] == 5
    # Each load is two files, by partition: even and odd ids of one range of ten.
    assert (columns["id"]["Overlapping Files"], columns["at"]["Overlapping Files"]) == (1, 1)
    assert columns["part"]["Overlapping Files"] == 2
    assert sum(c["Size Percent Of Table"] for c in columns.values()) == pytest.approx(100)
    assert {c["Primitive Type"] for c in columns.values()} == {
        *("long", "timestamp", "integer", "string", "decimal(30,3)")
    }


def test_field_names_are_those_of_public_analysers(analysis: Any) -> None:
    """The names of `delta_analyzer`, `delta_analyzer_history` and Microsoft's Delta Analyzer."""
    known = {
        "Summary": "Row Count,Row Groups,Parquet Files,Max Rows Per Row Group,"
        "Min Rows Per Row Group,Avg Rows Per Row Group,VOrder Enabled,Total Size",
        "Parquet Files": "Parquet File,Row Count,Row Groups,Created By,vorder_level",
        "Row Groups": "Parquet File,Row Group ID,Row Count,Compressed Size,Uncompressed Size,"
        "Compression Ratio,Ratio Of Total Table Rows,BytesPerRow",
        "Column Chunks": "Parquet File,Column ID,Column Name,Column Type,Compressed Size,"
        "Uncompressed Size,Has Dict,Dict Offset,Value Count,Encodings,Statistics,Primitive Type,"
        "Codec,DictPageCompressedSize,BytesPerRow,DictionaryOverflow",
        "Columns": "Column Name,Column Type,Compressed Size,Uncompressed Size,Cardinality,"
        "Size Percent Of Table,Cardinality Of Total Rows,Primitive Type,BytesPerRow",
        "Change History": "Change Type,Predicate,Files Added,Files Removed,Files Preserved,"
        "Files After Change,Row Groups Added,Row Groups Removed,Row Groups Preserved,"
        "Row Groups After Change,Rows Added,Rows Removed,Rows Delta,Rows After Change,Size Added,"
        "Size Removed,Size After Change",
    }
    for table, names in known.items():
        assert set(names.split(",")) <= set(analysis.tables[table].columns), table


def test_histograms_of_sizes_and_of_skew(analysis: Any) -> None:
    files = {row["File Size"]: (row["Files"], row["Rows"]) for row in rows(analysis, "File Sizes")}
    assert files.pop("under 1 MiB") == (6, 27)
    assert set(files.values()) == {(0, 0)}
    groups = rows(analysis, "Row Group Sizes")
    assert [row["Row Groups"] for row in groups] == [6, 0, 0, 0, 0, 0]
    assert groups[0]["Rows"] == 30
    parts = {row["Partition"]: row for row in rows(analysis, "Partitions")}
    # Ids that end in 3 are gone, and they were odd.
    found = {json.loads(part)["part"]: (row["Files"], row["Rows"]) for part, row in parts.items()}
    assert found == {"a b%/0": (3, 15), "a b%/1": (3, 12)}
    sizes = [row["Size"] for row in parts.values()]
    median = sum(sizes) / 2
    assert [row["Times Median"] for row in parts.values()] == [size / median for size in sizes]


def test_history_counts_from_a_checkpoint_on(odd: Lake, analysis: Any) -> None:
    """Deletion vectors change rows, not files; the first commits' files are in a checkpoint."""
    name = ODD.removeprefix("Tables/")
    whole = rows(analysis, "Change History")
    assert [c["Change Type"] for c in whole] == [
        "CREATE TABLE",
        "WRITE",
        "WRITE",
        "WRITE",
        "DELETE",
    ]
    deletion = whole[-1]
    assert (deletion["Files Added"], deletion["Files Removed"]) == (0, 0)
    assert (deletion["Deletion Vectors Changed"], deletion["Rows Removed"]) == (3, 3)
    assert (deletion["Rows After Change"], deletion["Files After Change"]) == (27, 6)
    log = Path(odd.storage.path(ODD)) / "_delta_log"
    hidden = [log / f"{version:020d}.json" for version in (0, 1)]
    for file in hidden:
        file.rename(f"{file}.gone")
    try:
        late = rows(odd.table(name).analyze(scan=False), "Change History")
    finally:
        for file in hidden:
            Path(f"{file}.gone").rename(file)
    assert late == whole[3:]


def test_an_empty_version_and_a_missing_one(odd: Lake) -> None:
    table = odd.table(ODD.removeprefix("Tables/"))
    empty = table.analyze(version=0)
    assert empty.summary["Row Count"] == 0
    assert empty.summary["Avg Rows Per Row Group"] is None
    assert empty.summary["VOrder Enabled"] is None
    assert len(list(empty.tables.made())) == 2  # what the summary is made of; others when asked for
    assert len(empty.tables) == len(list(empty.tables)) == 10
    assert empty.tables["Columns"] is empty.tables["Columns"]
    assert rows(empty, "Columns") == rows(empty, "Parquet Files") == []
    assert empty.summary["Stale Files"] == 6
    assert empty.guardrails().smallest == "F2"
    with pytest.raises(UsageError, match="not contain version 99"):
        table.analyze(version=99)


@pytest.mark.long
def test_vorder_is_judged_file_by_file(lake: Lake) -> None:
    """Not by one file, not by a stale one, and not by a tag that the file contradicts."""
    table = HandMade(Path(lake.storage.path("Tables/t")))
    one = pa.table({"id": [1, 2, 3]})
    table.create(one.schema, {"delta.parquet.vorder.default": "true"})
    level = MICROSOFT | {"com.microsoft.parquet.vorder.level": "9"}
    names = [
        table.file("a b/1%.parquet", one, footer=level, tags={"VORDER": "true"}),
        table.file("2.parquet", one, tags={"VORDER": "true"}),
        table.file("3.parquet", one),
    ]
    table.file("stale.parquet", one, footer=MICROSOFT)
    table.commit("WRITE", add=names)
    (Path(lake.storage.path("Tables/t")) / "3.parquet").write_bytes(b"PAR1 broken")
    analysis = lake.table("t").analyze(scan=False)
    found = {f["Parquet File"]: f for f in rows(analysis, "Parquet Files")}
    assert set(found) == set(names)
    assert [found[n]["VOrder"] for n in names] == [True, False, None]
    assert [found[n]["VOrder Tag"] for n in names] == [True, True, None]
    assert [found[n]["VOrder Disagrees"] for n in names] == [False, True, False]
    assert found[names[0]]["vorder_level"] == "9"
    assert found["3.parquet"]["Problem"].startswith("unreadable")
    assert found["3.parquet"]["Row Count"] == 3  # what the log says of it
    summary = analysis.summary
    assert (summary["VOrder Enabled"], summary["VOrder Files"]) == (False, 1)
    assert (summary["VOrder Disagreements"], summary["Unreadable Files"]) == (1, 1)
    assert [f["Parquet File"] for f in rows(analysis, "Stale Files")] == ["stale.parquet"]


@pytest.mark.long
def test_a_change_that_preserves_nothing(lake: Lake) -> None:
    """The public example at a thousandth of its size: deleting one day rewrites the whole table."""
    table = HandMade(Path(lake.storage.path("Tables/fact")))
    whole = pa.table({"v": pa.array([7] * 125_000, pa.int64())})
    table.create(whole.schema)
    first = [table.file(f"a{i}.parquet", whole, row_group_size=41_667) for i in range(8)]
    table.commit("WRITE", add=first)
    kept, left = [], 1_000_000 - 549
    for i in range(18):
        count = 55_000 if i < 17 else left - 17 * 55_000
        size = 30_000 if i < 2 else 70_000
        kept.append(table.file(f"b{i}.parquet", whole.slice(0, count), row_group_size=size))
    table.commit("DELETE", add=kept, remove=first, operationParameters={"predicate": "day = 3"})
    table.commit("WRITE", add=[table.file("c.parquet", whole.slice(0, 600))])
    changes = rows(lake.table("fact").analyze(scan=False), "Change History")
    load, deletion, append = changes[1:]
    assert (load["Files After Change"], load["Row Groups After Change"]) == (8, 24)
    assert load["Rows After Change"] == 1_000_000
    assert (deletion["Rows Added"], deletion["Rows Removed"]) == (999_451, 1_000_000)
    assert (deletion["Rows Delta"], deletion["Predicate"]) == (-549, "day = 3")
    assert (deletion["Files Preserved"], deletion["Row Groups Preserved"]) == (0, 0)
    assert deletion["Incremental Effect"] == 0
    assert (append["Files After Change"], append["Row Groups After Change"]) == (19, 21)
    assert (append["Files Preserved"], append["Incremental Effect"]) == (18, 100)
    # VACUUM takes the first files: their row groups can't be counted any more, and nothing lies.
    for name in first:
        (table.folder / name).unlink()
    after = rows(lake.table("fact").analyze(scan=False), "Change History")
    assert [c["Row Groups After Change"] for c in after] == [0, None, None, None]
    assert [c["Row Groups Preserved"] for c in after] == [0, 0, None, 0]
    assert [c["Rows After Change"] for c in after] == [0, 1_000_000, 999_451, 1_000_051]


@pytest.fixture
def table(lake: Lake) -> HandMade:
    """A table `t` with one file of three rows."""
    table = HandMade(Path(lake.storage.path("Tables/t")))
    table.create(ONE.schema)
    table.commit("WRITE", add=[table.file("1.parquet", ONE)])
    return table


@pytest.mark.long
def test_saved_tables(lake: Lake, table: HandMade) -> None:
    lake.table("t").analyze(scan=False).save(["Summary", "File Sizes"])
    table.commit("WRITE", add=[table.file("2.parquet", ONE)])
    lake.table("t").analyze(scan=False).save(["Summary"])
    saved = lake.table("diagnostics.summary").read().orderBy("version")
    assert [(r.table_name, r.version, r.parquet_files) for r in saved.collect()] == [
        ("t", 1, 1),
        ("t", 2, 2),
    ]
    assert lake.table("diagnostics.file_sizes").read().count() == 7


def test_the_command(lake: Lake, table: HandMade, pytestconfig: pytest.Config) -> None:
    asked = ["analyze", lake.storage.root, "t", "--json", "--sku", "F64", "--footers-only"]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert list(document) == [
        *("Summary", "Parquet Files", "Row Groups", "Column Chunks", "Columns", "File Sizes"),
        *("Row Group Sizes", "Partitions", "Stale Files", "Change History", "Guardrails", "Advice"),
    ]
    for part in document.values():
        assert set(part) == {"columns", "rows"}
        assert all(list(row) == part["columns"] for row in part["rows"])
    assert document["Summary"]["rows"][0]["Row Count"] == 3
    assert document["Guardrails"]["rows"][0]["SKU"] == "F64"
    shown = CliRunner().invoke(cli.app, ["analyze", lake.storage.root, "t", "--footers-only"])
    assert "3 rows in 1 file and 1 row group" in shown.stdout
    with pytest.raises(UsageError, match="F3"):
        CliRunner().invoke(cli.app, [*asked[:3], "--sku", "F3"], catch_exceptions=False)
    if pytestconfig.getoption("--long"):
        done = CliRunner().invoke(cli.app, asked[:4])
        counted = [row["Cardinality"] for row in json.loads(done.stdout)["Columns"]["rows"]]
        assert counted == [3]
