"""`one_spark`: steps of a plan that start their Spark in one JVM, one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.small_notebooks import put_notebook, put_plan
from mirrorlake.errors import UsageError
from mirrorlake_runs import run_plan

HEAD = 'root: str = ""'
WRITES = """
from mirrorlake_runs import record
from mirrorlake.spark.session import get_spark
spark = get_spark()
table = root + "/t"
before = spark.read.format("delta").load(table).count() if {again} else 0
spark.range(2).write.format("delta").mode("append").save(table)
spark.range(3).createOrReplaceTempView("left")
spark.conf.set("spark.sql.shuffle.partitions", "77")
jvm = spark.sparkContext._gateway.jvm
record(before=before, app=spark.sparkContext.applicationId,
       jvm=jvm.java.lang.ProcessHandle.current().pid())
"""
LOOKS = """
views = [one.name for one in spark.catalog.listTables()]
record(views=len(views), shuffles=spark.conf.get("spark.sql.shuffle.partitions"))
"""
PLAN = """
name: one
one_spark: true
steps:
- {notebook: first.ipynb}
- {notebook: again.ipynb, name: second}
- {notebook: dies.ipynb, needs: second, continue_on_error: true}
- {notebook: again.ipynb, name: last, needs: dies}
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MIRRORLAKE_STATE", str(tmp_path / "state"))


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.long  # test_notebooks_run.py runs such a plan also without --long
def test_steps_share_a_jvm_and_nothing_else(tmp_path: Path) -> None:
    put_notebook(tmp_path, "first", WRITES.format(again=False), head=HEAD)
    look = LOOKS.strip()
    write = WRITES.format(again=True).replace("spark = get_spark()", f"spark = get_spark()\n{look}")
    put_notebook(tmp_path, "again", write, head=HEAD)
    put_notebook(tmp_path, "dies", "import os; os._exit(3)", head=HEAD)
    root = str(tmp_path / "tables")
    done = run_plan(put_plan(tmp_path, PLAN), tmp_path / "out", overrides={"root": root})
    assert [step.status for step in done.steps] == ["done", "done", "failed", "done"], done.failed
    first, second, _, last = [step.records for step in done.steps]
    assert (first["before"], second["before"], last["before"]) == (0, 2, 4)
    assert first["jvm"] == second["jvm"] != last["jvm"]
    assert first["app"] != second["app"]
    assert (second["views"], second["shuffles"]) == (0, "2")
    assert not is_there(first["jvm"])
    assert not is_there(last["jvm"])


@pytest.mark.long
def test_a_killed_run_leaves_no_jvm(tmp_path: Path) -> None:
    told = tmp_path / "jvm"
    waits = f"""
from pathlib import Path
from mirrorlake.spark.session import get_spark
jvm = get_spark().sparkContext._gateway.jvm
Path({str(told)!r}).write_text(str(jvm.java.lang.ProcessHandle.current().pid()))
import time; time.sleep(600)
"""
    put_notebook(tmp_path, "waits", waits)
    plan = put_plan(tmp_path, "one_spark: true\nsteps: [{notebook: waits.ipynb}]")
    command = [sys.executable, "-m", "mirrorlake.cli", "run", str(plan)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        end = time.monotonic() + 120
        while not (told.exists() and told.read_text()):
            assert time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    while is_there(int(told.read_text())):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_not_beside_each_other(tmp_path: Path) -> None:
    put_notebook(tmp_path, "n", "1")
    plan = put_plan(tmp_path, "one_spark: true\nparallel: 2\nsteps: [{notebook: n.ipynb}]")
    with pytest.raises(UsageError, match="parallel steps"):
        run_plan(plan)
