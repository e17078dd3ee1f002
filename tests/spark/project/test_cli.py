"""The commands as scripts meet them: exit status, JSON on stdout, nothing else there.

Each call of the launcher is a Python process, and often a JVM: what a process cannot change is
asked in this one.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from helpers.project import PROJECT
from mirrorlake.cli import main as cli

LAUNCHER = PROJECT / "mirrorlake"
KEYS = {"name", "schema", "state", "rows", "last_file", "waiting_for", "waiting_since"}
KEYS |= {"backlog_files", "backlog_bytes", "lag_seconds", "error"}


def run(*arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [LAUNCHER, *arguments], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == status, (done.stdout, done.stderr[-2000:])
    return done


def ask(*arguments: str | Path) -> Any:
    """A command's JSON, run in this process."""
    done = CliRunner().invoke(cli.app, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_publish_mirror_status_sql(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    root = tmp_path / "lake"
    rows = pa.table(
        {
            "id": [1, 2],
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "ratio": [float("nan"), float("-inf")],
            "blob": [b"\x00\xff", None],
            "at": pa.array([1_714_295_700_000_000, None], pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(rows, tmp_path / "load.parquet")
    (tmp_path / "gone.csv").write_text("id\n2\n")
    assert (
        "2 rows"
        in run("publish", root, "sales.orders", tmp_path / "load.parquet", "--keys", "id").stdout
    )
    published = ask("publish", root, "sales.orders", tmp_path / "gone.csv", "--marker", "delete")
    assert published["published"][0]["file"] == "00000000000000000002.parquet"
    before = json.loads(run("status", root, "--json").stdout)["tables"]
    assert [(line["state"], line["backlog_files"]) for line in before] == [("Initialized", 2)]

    (planned,) = ask("mirror", root, "--dry-run")["tables"]
    assert [int(name[:20]) for name in planned["files"]] == [1, 2]
    assert ask("status", root)["tables"][0]["backlog_files"] == 2
    if pytestconfig.getoption("--long"):  # test_mirror_watch.py also reads stdout beside a JVM
        (line,) = json.loads(run("mirror", root, "--json").stdout)["tables"]
    else:
        (line,) = ask("mirror", root)["tables"]
    assert set(line) == KEYS
    (planned,) = ask("mirror", root, "--dry-run")["tables"]
    assert (planned["files"], planned["last_file"], planned["error"]) == ([], 2, None)
    assert (line["schema"], line["name"], line["state"]) == ("sales", "orders", "Replicating")
    assert (line["rows"], line["last_file"], line["backlog_files"]) == (3, 2, 0)
    assert (line["waiting_for"], line["error"]) == (None, None)

    query = "SELECT *, CAST('2024-02-03' AS DATE) AS day FROM sales.orders"
    answer = ask("sql", root, query)
    assert answer["columns"] == ["id", "price", "ratio", "blob", "at", "day"]
    assert answer["rows"] == [
        {
            "id": 1,
            "price": "1.50",
            "ratio": "NaN",
            "blob": base64.b64encode(b"\x00\xff").decode(),
            "at": "2024-04-28T09:15:00+00:00",
            "day": "2024-02-03",
        }
    ]


def test_a_failed_table_is_exit_status_1(tmp_path: Path) -> None:
    folder = tmp_path / "Files" / "LandingZone" / "t"
    folder.mkdir(parents=True)
    (folder / "00000000000000000001.parquet").touch()
    (line,) = json.loads(run("mirror", tmp_path, "--json", status=1).stdout)["tables"]
    assert line["error"]["file"] == "00000000000000000001.parquet"
    assert set(line["error"]) == {"message", "file", "row", "column"}
    monitoring = json.loads((tmp_path / "Files/Monitoring/tables.json").read_text())
    assert monitoring["tables"][0]["status"] == "Failed"
    shown = run("status", tmp_path, status=1)
    assert "zero bytes" in " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("mirror",),
        ("mirror", "/no/such/lake"),
        ("status", "/no/such/lake"),
        ("sql", "/no/such/lake", "SELECT 1"),
        ("publish", "/tmp/x", "../up", "f.parquet"),
        ("publish", "/tmp/x", "t", "f.parquet", "--marker", "replace"),
        ("run", "/no/such/plan.yaml"),
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)
def test_wrong_use_is_exit_status_2(
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["mirrorlake", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.err
    assert not shown.out
    assert "Traceback" not in shown.err
    assert not Path("/tmp/up").exists()


def test_so_it_is_by_the_launcher() -> None:
    done = run("sql", "/no/such/lake", "SELECT 1", status=2)
    assert done.stderr
    assert not done.stdout
    assert "Traceback" not in done.stderr


def test_a_failed_query_is_exit_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["mirrorlake", "sql", str(tmp_path), "SELECT x FROM nowhere", "--json"]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    shown = capsys.readouterr()
    assert "nowhere" in shown.err
    error = json.loads(shown.out)["error"]
    assert "nowhere" in error["message"]
    assert set(error) == {"message", "hint", "file", "row", "column"}
    assert len(shown.err.splitlines()) <= 2
