"""Overviews of files and partitioning reports: their texts, and that they write nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.notebooks import lake_state
from mirrorlake import Lake
from mirrorlake.errors import QueryError, UsageError

POLICY = '{"PartitionKeys": [{"ColumnName": "k", "Kind": "Hash"}]}'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of four tables; each test uses a copy."""
    lake = Lake(tmp_path_factory.mktemp("made") / "lake")
    rows = lake.spark.range(900).selectExpr("id", "concat('k', id % 90) AS k", "id % 7 AS n")
    lake.write("many", rows.repartition(9, "id"))
    lake.write("one", rows.coalesce(1))
    lake.create_table("empty", {"id": "bigint"})
    lake.create_table("nested", {"m": "map<string, int>"})
    return Path(lake.storage.root)


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Lake:
    return Lake(shutil.copytree(made, tmp_path / "lake"))


def test_tables_that_need_attention_come_first(lake: Lake, tmp_path: Path) -> None:
    lake.create_table("lost", {"id": "bigint"})
    lake.storage.write("Tables/lost/_delta_log/00000000000000000000.json", b"{broken")
    before = lake_state(tmp_path)
    found = lake.analyze(sku="F64")
    assert [one.table for one in found.tables][:2] == ["lost", "many"]
    assert ([one.table for one in found.failed], found.first) == (["lost"], "many")
    assert "small files" in found.tables[1].rules
    assert {one.table: one.files for one in found.tables} == {
        "lost": 0, "many": 9, "one": 1, "empty": 0, "nested": 0,
    }  # fmt: skip
    assert lake_state(tmp_path) == before


@pytest.mark.long  # the tool file_diagnostics shows the same in every run
@pytest.mark.parametrize("name", ["many", "empty", "nested"])
def test_the_figures_of_a_table(lake: Lake, tmp_path: Path, name: str) -> None:
    before = lake_state(tmp_path)
    analysis = lake.table(name).analyze()
    shown = (analysis.figures(), analysis.columns(), analysis.advice().shown())
    assert all(table.columns for table in shown)
    assert analysis.guardrails("F2").shown().rows[0][-1] == "within"
    assert str(tmp_path) not in repr(shown)
    assert lake_state(tmp_path) == before


@pytest.mark.long
def test_columns_before_and_after(lake: Lake) -> None:
    many = lake.table("many")
    before = many.analyze()
    assert [row[0] for row in before.column_sizes().shown().rows] == ["id", "k", "n"]
    many.optimize.compact()
    rows = many.analyze().column_sizes(before).shown().rows
    assert [row[0] for row in rows] == ["id", "k", "n"]
    assert rows[0][3].endswith(" %")
    planned = many.optimize.vorder(dry_run=True).summary()
    assert sum(row[3] for row in planned.rows) == 1
    assert lake.table("empty").optimize.vorder(dry_run=True).summary().rows == ()


@pytest.mark.long
def test_a_policy_is_evaluated_without_setting_it(lake: Lake, tmp_path: Path) -> None:
    partitioning = lake.table("many").partitioning
    before = lake_state(tmp_path)
    none = partitioning.report()
    assert (none.policy, none.spread, none.scan) == (None, None, None)
    assert len(none.notes) == 2
    tried = partitioning.report(POLICY)
    assert tried.proposed
    assert tried.spread is not None
    assert tried.where == "`k` = 'k0'"
    assert tried.scan is not None
    assert 0 < tried.scan.unpartitioned == len(tried.scan.read)
    assert partitioning.report(where="id < 5 AND n > 1").scan is not None
    for name in ("empty", "nested"):
        assert lake.table(name).partitioning.report().stats.rows == 0
    with pytest.raises(UsageError):
        partitioning.report("{")
    with pytest.raises(QueryError):
        partitioning.report(where="nothing = 1")
    assert lake_state(tmp_path) == before


@pytest.mark.long
def test_a_policy_is_applied(lake: Lake) -> None:
    partitioning = lake.table("many").partitioning
    assert partitioning.apply() == ()
    partitioning.apply(POLICY[:-1] + ', "EffectiveDateTime": "2000-01-01"}')
    after = partitioning.report()
    assert (after.stats.percentage, after.planned) == (100.0, ())
    assert after.scan is not None
    assert len(after.scan.read) == 1
    assert lake.table("many").read().count() == 900
