"""Registration of the lake's tables in Spark's catalog, with Spark's built-in Hive metastore.

A session with Hive is a separate process, which joins the JVM of the notebooks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.project import PROJECT


@pytest.mark.usefixtures("one_spark")
def test_a_hive_metastore_follows_the_lake_and_keeps_what_is_not_ours(tmp_path: Path) -> None:
    path = os.pathsep.join([str(PROJECT / "lib"), str(PROJECT / "tests")])
    done = subprocess.run(
        [sys.executable, "-m", "helpers.hive_program", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["page"] is None
    assert seen["dry"] == "spark_catalog: 3 added, 0 kept, 0 removed, 1 refused (a dry run)"
    assert seen["nothing"] == [["stock"], False]
    odd = ["odd name-'1", "sales.odd name-'1", "refused"]
    first = [
        ["Orders", "sales.Orders", "added"],
        odd,
        ["shop.items", "shop.items", "added"],
        ["stock", "sales.stock", "refused"],
    ]
    assert sorted(seen["first"]) == first
    assert sorted(seen["again"]) == [
        [table, name, outcome.replace("added", "kept")] for table, name, outcome in first
    ]
    assert seen["rows"] == [[1, 1]]
    assert seen["cycle"] == []
    assert seen["widened"] == ["id", "n", "more"]
    assert seen["followed"] == ["late", "orders", "stock"]
    assert seen["dropped"] == ["Orders"]
    assert seen["forgotten"] == ["late", "stock"]
    assert seen["created"] == [["fresh", "late", "stock"], 1]
    assert seen["gone"] == ["late", "stock"]
    assert seen["own"] == "delta"  # in the folder of its database, which DROP DATABASE deletes
    said = seen["elsewhere"]["said"]
    assert said.startswith("The lake is registered in spark_catalog.sales")
    assert seen["undone"] == ["sales.late", "shop.items"]
    assert seen["left"] == [["byhand", "stock"], ["own"], 1]  # other names stay, and the rows
    assert seen["once more"]["said"].startswith("The lake is not registered.")
