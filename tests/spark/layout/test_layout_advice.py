"""Each recommendation appears where its cause is, and nowhere else."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from helpers.delta_by_hand import HandMade
from mirrorlake import Lake
from mirrorlake.errors import UsageError
from mirrorlake.mirror.options import KEYS_PROPERTY


def rules(advice: Any, rule: str) -> list[str | None]:
    return [finding.column for finding in advice.findings if finding.rule == rule]


@pytest.mark.promise("DL-18", "DL-19")
def test_advice_on_columns(lake: Lake) -> None:
    table = HandMade(Path(lake.storage.path("Tables/sales")))
    rng = np.random.default_rng(3)
    count = 5_000
    quantity = rng.integers(1, 9, count)
    rows = pa.table(
        {
            "FirstName": pa.array(["Ada", "Max"]).take(pa.array(quantity % 2)),
            "LastName": pa.array(["Lovelace", "Planck"]).take(pa.array(quantity % 2)),
            "Quantity": quantity,
            "Price": np.round(rng.integers(1, 50, count) + rng.normal(0, 1e-5, count), 7),
            "Again": quantity,
            "Always": ["x"] * count,
            "Amount": np.round(quantity + rng.integers(1, 99, count) / 100, 2),
            "Key": [f"{value:040x}" for value in range(count)],
            "Guid": [f"{value:032x}" for value in rng.integers(0, 2**62, count)],
            "Text": ["long " * 40 + str(value) for value in rng.integers(0, 2**60, count)],
        }
    )
    table.create(rows.schema, {KEYS_PROPERTY: '["Key"]'})
    table.commit("WRITE", add=[table.file("1.parquet", rows, compression="none")])
    analysis = lake.table("sales").analyze()
    advice = analysis.advice()
    assert rules(advice, "constant column") == ["Always"]
    assert rules(advice, "duplicate column") == ["Again"]
    assert rules(advice, "float precision") == ["Price"]
    assert rules(advice, "wide strings") == ["Text"]
    assert rules(advice, "high cardinality") == ["Guid"]
    assert set(rules(advice, "calculated column")) == {"FirstName + LastName", "Quantity × Price"}
    assert rules(advice, "no V-Order") == [None]
    for absent in ("small files", "needless partitions", "deletion vectors piled up"):
        assert rules(advice, absent) == []
    assert not [finding for finding in advice.findings if finding.rule.startswith("fewer rows")]
    # The remedy has the stated gain: 49 prices instead of thousands.
    (price,) = [finding for finding in advice.findings if finding.rule == "float precision"]
    assert "when rounded to" in price.evidence
    used = analysis.advice(used=["Quantity", "Price"])
    assert set(rules(used, "unused column")) == {
        *("FirstName", "LastName", "Again", "Always", "Amount", "Guid", "Text")
    }
    assert rules(analysis.advice(used="quantity, Price"), "unused column") == rules(
        used, "unused column"
    )
    assert "sales" in repr(advice)
    assert "×" in advice._repr_html_()
    needed = analysis.chunks_needed(["Quantity", "Price"]).collect()
    assert [chunk["Column Name"] for chunk in needed] == ["Quantity", "Price"]


@pytest.mark.promise("DL-17")
def test_advice_to_keep_fewer_rows(lake: Lake, pytestconfig: pytest.Config) -> None:
    lake.write(
        "sales",
        lake.spark.range(0, 40_000, 1, 1).selectExpr(
            "id AS order_id",
            "int(id % 4) AS store",
            "date_add(DATE'2020-01-01', int(id * 1826 / 40000)) AS `the day`",
            "double(id % 7) AS amount",
            "int(id % 3) AS `units sold`",
        ),
    )
    analysis = lake.table("sales").analyze()
    assert not any(f.rule.startswith("fewer rows") for f in analysis.advice().findings)
    advice = analysis.advice(many_rows=1_000)
    found = {finding.rule: finding for finding in advice.findings}
    summary = found["fewer rows by a summary"]
    assert summary.column == "store, the day"
    assert "40,000 rows, 0.0 % of the guardrail" in summary.evidence
    made = lake.spark.sql(summary.remedy).cache()
    assert 4 * 1826 * 0.97 < made.count() <= 4 * 1826
    totals = made.selectExpr("sum(amount)", "sum(`units sold`)", "sum(rows)").first()
    table = lake.table("sales").read()
    assert totals == table.selectExpr("sum(amount)", "sum(`units sold`)", "count(*)").first()
    history = found["fewer rows by less history"]
    before = table.count()
    old = table.where("`the day` < DATE'2022-12-01'").count()
    assert f"{old:,} are from before 2022-12-01" in history.evidence
    lake.spark.sql(history.remedy)
    assert lake.table("sales").read().count() == before - old
    if pytestconfig.getoption("--long"):
        after = lake.table("sales").analyze().advice(many_rows=1_000)
        assert rules(after, "fewer rows by less history") == []


@pytest.mark.promise("DL-20")
def test_the_remedy_adds_the_calculated_column(lake: Lake, pytestconfig: pytest.Config) -> None:
    lake.write(
        "sales",
        lake.spark.sql(
            "SELECT 'Ada' AS FirstName, 'Lovelace' AS LastName, 3 AS Quantity,"
            " 2.50BD AS Price, 'x' AS Amount"
        ),
    )
    advice = lake.table("sales").analyze().advice()
    found = [finding for finding in advice.findings if finding.rule == "calculated column"]
    for finding in found:
        for statement in finding.remedy.split("; "):
            lake.spark.sql(statement)
    row = lake.table("sales").read().first()
    assert row is not None
    assert row["full_name"] == "Ada Lovelace"
    assert row["amount_2"] == Decimal("7.50")
    (product,) = [finding for finding in found if "×" in str(finding.column)]
    # The statements enable column mapping, without which Delta refuses to drop columns.
    for statement in product.gain.partition(": ")[2].split("; "):
        lake.spark.sql(statement)
    left = lake.table("sales").read().columns
    assert left == ["FirstName", "LastName", "Amount", "amount_2", "full_name"]
    if pytestconfig.getoption("--long"):
        assert rules(lake.table("sales").analyze().advice(), "calculated column") == []


def test_advice_on_files(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lake.storage.path("Tables/t")
    lake.spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, `a b` INT, p INT) USING delta PARTITIONED BY (p)"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true',"
        " 'delta.columnMapping.mode' = 'name')"
    )
    lake.spark.sql(f"INSERT INTO delta.`{path}` SELECT id, 1, INT(id % 10) FROM RANGE(1000)")
    lake.spark.sql(f"DELETE FROM delta.`{path}` WHERE id < 300")
    log = Path(path) / "_delta_log"
    version = lake.table("t").snapshot().version
    commit = log / f"{version:020d}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    adds = [line["add"] for line in lines if "add" in line]
    # A file of a writer without statistics.
    bare = {key: value for key, value in adds[0].items() if key not in ("stats", "deletionVector")}
    info = {"commitInfo": {"timestamp": 1_700_000_000_000, "operation": "WRITE"}}
    text = "\n".join(map(json.dumps, [info, {"add": bare | {"path": "none.parquet"}}]))
    (log / f"{version + 1:020d}.json").write_text(text + "\n")
    (Path(path) / "none.parquet").write_bytes(b"broken")
    analysis = lake.table("t").analyze(scan=False)
    advice = analysis.advice()
    assert [finding.rule for finding in advice.findings] == [
        "small files",
        "no V-Order",
        "deletion vectors piled up",
        "missing statistics",
        "needless partitions",
        "features a reader may lack",
        "column mapping",
    ]
    assert advice.findings[-2].remedy.endswith("DROP FEATURE deletionVectors")  # `a b` is mapped
    assert advice.findings[-1].column == "a b"
    assert "OPTIMIZE delta.`" in advice.findings[0].remedy
    assert advice.findings[2].remedy == f"REORG TABLE delta.`{path}` APPLY (PURGE)"
    # Plain OPTIMIZE and REORG would mix the partitions of a partitioning policy.
    monkeypatch.setattr("mirrorlake.layout.advice.has_partitioning_policy", lambda *_: True)
    advice = analysis.advice()
    assert advice.findings[0].remedy == "./mirrorlake partition run ROOT t"
    assert advice.findings[2].remedy == "./mirrorlake reorg ROOT t"


@pytest.mark.promise("DL-12", "DL-21")
def test_layouts_are_compared_by_copies(lake: Lake) -> None:
    rows = lake.spark.range(0, 20_000, 1, 1).selectExpr("id", "int(hash(id) % 15) AS city")
    write_deltalake(lake.storage.path("Tables/sales"), rows.toArrow())
    optimize = lake.table("sales").optimize
    layouts: dict[str, dict[str, Any]] = {
        "plain": {"files": 1, "row_group_rows": 4_000},
        "by city": {"partition_by": ("city",)},
        "V-Order": {"files": 1, "vorder": True, "sort_by": ("city",)},
    }
    queries = {"total": "SELECT sum(id), max(city) FROM {table}"}
    with pytest.raises(UsageError, match="unknown option 'order'"):
        optimize.compare_layouts({"x": {"order": 1}}, {})
    found = optimize.compare_layouts(layouts, queries)
    copies = {copy.layout: copy for copy in found.copies}
    assert list(copies) == list(layouts)
    assert (copies["plain"].files, copies["plain"].row_groups) == (1, 5)
    assert copies["by city"].files > 15
    assert copies["V-Order"].size < copies["plain"].size < copies["by city"].size
    for copy in found.copies:
        assert copy.write_seconds > 0
        assert copy.read_seconds["total"] > 0
    assert found.shown().columns == (
        *("layout", "files", "row groups", "size", "write s", "total"),
    )
    # The copies are deleted, and were never tables of this lake.
    assert [str(name) for name in lake.tables()] == ["sales"]
    # The advice is the same for a table with these partitions.
    many = pa.table({"id": range(120), "city": range(120)})
    write_deltalake(lake.storage.path("Tables/many"), many, partition_by=["city"])
    advice = lake.table("many").analyze(scan=False).advice()
    assert rules(advice, "partitions of high cardinality") == ["city"]
