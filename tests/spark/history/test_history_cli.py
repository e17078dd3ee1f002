"""Test the commands on versions, frames and maintenance, in this process and its session."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from mirrorlake import Lake
from mirrorlake.cli import main as cli

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., Any]


@pytest.fixture
def run(lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on the lake, and return its output, parsed if it is JSON."""

    def call(command: str, *arguments: str, status: int = 0) -> Any:
        line = ["mirrorlake", *command.split(), str(lake.storage.root), *arguments]
        monkeypatch.setattr("sys.argv", line)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        assert ended.value.code == status, (captured.out, captured.err)
        if status:
            return captured.err
        return json.loads(captured.out) if "--json" in arguments else captured.out

    return call


def test_history_diff_restore(lake: Lake, run: Run, spark: SparkSession) -> None:
    lake.write("T", spark.createDataFrame([(1, "a"), (2, "b")], "id int, v string").coalesce(1))
    lake.write("T", spark.createDataFrame([(3, "c")], "id int, v string").coalesce(1))
    document = run("history", "t", "--json", "--limit", "2")
    assert document["columns"] == [
        "version",
        "timestamp",
        "operation",
        "parameters",
        "metrics",
        "note",
    ]
    assert [(row["version"], row["operation"]) for row in document["rows"]] == [
        (2, "WRITE"),
        (1, "WRITE"),
    ]
    shown = run("history", "t", "--limit", "2")
    assert "--limit 2 shows the newest 2" in shown
    assert "versions 0 to 2" in shown
    document = run("diff", "t", "--from", "1", "--json")
    assert document["rows"] == [{"id": 3, "v": "c", "_change_type": "insert"}]
    assert "insert" in run("diff", "t", "--from", "0", "--to", "1", "--match", "row")
    assert "Nothing was changed" in run("restore", "t", "--version", "1")
    done = run("restore", "t", "--version", "1", "--apply", "--json")
    assert (done["table"], done["applied"], done["version"]) == ("T", True, 1)
    assert "versions 0 to 3" in run("restore", "t", "--version", "9", status=1)
    assert "There is no table x" in run("history", "x", status=1)
    assert "can't be matched" in run("diff", "t", "--from", "1", "--keys", "zzz", status=2)


def test_frames_and_maintenance(lake: Lake, run: Run, spark: SparkSession) -> None:
    lake.write("t", spark.range(0, 4, 1, 1))
    lake.write("t", spark.range(4, 8, 1, 1))
    planned = run("frame create", "m", "--tables", "t", "--dry-run", "--json")
    assert (planned["state"], planned["tables"][0]["version"]) == ("planned", 2)
    assert run("frame list", "--json") == {"frames": []}
    made = run("frame create", "m", "--tables", "t", "--expires-in", "2", "--json")
    assert (made["model"], made["tables"][0]["version"]) == ("m", 2)
    assert run("frame list", "--json")["frames"] == [made]
    assert "t@v2" in run("frame list")
    done = run("optimize", "t", "--json")
    assert (done["table"], done["files"], done["files_added"]) == ("t", 2, 1)
    assert "Nothing was changed" in run("reorg", "t", "--dry-run")
    (line,) = run("frame show", "m", "--json")["tables"]
    assert (line["files_added"], line["files_removed"], line["framed"]) == (1, 2, 2)
    assert "would be deleted" in run("vacuum", "t")
    short = ("vacuum", "t", "--retention-hours", "0")
    assert "set allow_short=True (--allow-short) if nothing else runs" in run(*short, status=1)
    kept = run(*short, "--allow-short", "--apply", "--json")
    assert (kept["delete_files"], kept["applied"]) == (0, True)
    assert {share["why"] for share in kept["kept"]} == {"newest version", "frame 1 of m"}
    assert "a dry run" in run("frame release", "m", "--dry-run")
    assert run("frame list", "--json")["frames"] == [made]
    assert "released" in run("frame release", "m")
    assert "1 of m was released" in run("frame show", "m", status=1)
    assert run("frame create", "m", "--dry-run", "--json")["tables"][0]["table"] == "t"
    assert "partition column" in run("optimize", "t", "--where", "id = 1", status=2)
    said = run("maintain", "--json")
    assert said["tables"][0]["vacuum"]["applied"] is False


@pytest.mark.long
def test_nothing_but_json_on_stdout(lake: Lake, spark: SparkSession) -> None:
    """Test that what Delta prints to the JVM's inherited stdout is not in the output."""
    for _ in range(2):
        lake.write("t", spark.range(0, 4, 1, 1), mode="overwrite")
    command = [sys.executable, "-m", "mirrorlake.cli", "vacuum", str(lake.storage.root), "t"]
    command += ["--retention-hours", "0", "--allow-short", "--apply", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["delete_files"] == 1
