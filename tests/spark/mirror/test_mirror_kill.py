"""The mirror, killed at each of its steps and run again: the result equals the model.

An exception is raised at every step in this process, and SIGKILL is sent to another process at
three steps. More files arrive before the second run: a larger batch must not apply the first files
twice.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.killing import run_until
from helpers.markers import MARKER, Marker
from helpers.model import TableModel
from helpers.tables import bag
from mirrorlake import Lake, MirrorOptions
from mirrorlake.mirror.options import Step
from mirrorlake.names import TableName

COLUMNS = ["id", "v"]
FIRST = [(Marker.INSERT, {"id": n, "v": 0}) for n in range(5)]
SECOND = [
    (Marker.INSERT, {"id": 1, "v": 10}),
    (Marker.DELETE, {"id": 2, "v": None}),
    (Marker.UPSERT, {"id": 9, "v": 11}),
]
ONLY_NEW = [(Marker.INSERT, {"id": 20, "v": 12})]  # becomes a second file, which can be merged
THIRD = [(Marker.INSERT, {"id": 1, "v": 20}), (Marker.UPDATE, {"id": 3, "v": 21})]
KILLER = """
import os, signal, sys
from mirrorlake import Lake
from mirrorlake.mirror.options import MirrorOptions, Step
def kill(table, step):
    if step is Step[sys.argv[2]]:
        os.kill(os.getpid(), signal.SIGKILL)
Lake(sys.argv[1]).mirror(on_step=kill, options=MirrorOptions(compact_after=1))
"""


# The step of a skipped row is tested in test_operate.py.
STEPS = [step for step in Step if step is not Step.QUARANTINED]


class Killed(BaseException):
    """A kill; not an `Exception`, so that no code handles it as a table's failure."""


def publish(lake: Lake, model: TableModel, changes: list) -> None:
    rows = [{**row, MARKER: int(marker)} for marker, row in changes]
    lake.publisher("t", keys=["id"]).write(rows)
    model.apply_all(changes)


def check(lake: Lake, model: TableModel, commits: int) -> None:
    report = lake.mirror()
    assert not report.failed
    assert bag(lake, "t", COLUMNS) == model.bag(COLUMNS)
    (line,) = report.tables
    assert (line.state, line.backlog_files) == ("Replicating", 0)
    folder = lake.storage.list(TableName.parse("t").folder)
    numbered = [entry.name for entry in folder.files if entry.name[0] == "0"]
    assert numbered == [f"{line.last_file:020d}.parquet"]
    assert lake.table("t").snapshot().version <= commits


# Without --long: a table without its rows, and rows whose files were not moved.
RAISED = {(Step.CREATED, False), (Step.COMMITTED, True)}


@pytest.mark.parametrize(
    ("step", "mirrored_before"),
    [
        pytest.param(
            step,
            before,
            marks=[] if (step, before) in RAISED else pytest.mark.long,
            id=f"{'existing' if before else 'new'}-{step.value}",
        )
        for before in (False, True)
        for step in STEPS
        # An existing table is not created, and the only file of a new one is not compacted.
        if (before, step) not in ((True, Step.CREATED), (False, Step.COMPACTED))
    ],
)
def test_an_exception_after_any_step(lake: Lake, step: Step, mirrored_before: bool) -> None:
    model = TableModel(("id",))
    publish(lake, model, FIRST)
    if mirrored_before:
        lake.mirror()
        publish(lake, model, ONLY_NEW if step is Step.COMPACTED else SECOND)

    def kill(_table: TableName, done: Step) -> None:
        if done is step:
            raise Killed

    with pytest.raises(Killed):
        lake.mirror(on_step=kill, options=MirrorOptions(compact_after=1))
    publish(lake, model, THIRD)
    check(lake, model, commits=4)


@pytest.mark.long
@pytest.mark.parametrize("step", [s.name for s in STEPS], ids=str.lower)
def test_sigkill(lake: Lake, step: str) -> None:
    model = TableModel(("id",))
    publish(lake, model, FIRST)
    if step == "COMPACTED":
        lake.mirror()
    publish(lake, model, ONLY_NEW if step == "COMPACTED" else SECOND)
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, lake.storage.root, step], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    (line,) = lake.status().tables  # from the Delta log if the saved state is older
    assert line.last_file == (2 if step in ("COMMITTED", "MOVED", "COMPACTED") else 0)
    publish(lake, model, THIRD)
    check(lake, model, commits=4 if step == "COMPACTED" else 3)


MIRROR = "import sys; from mirrorlake import Lake; assert not Lake(sys.argv[1]).mirror().failed"
COMMIT = f"{2:020d}.json"  # after version 0 and the first load


@pytest.mark.long
@pytest.mark.parametrize("made", ["deletion_vector_", "_change_data", ".parquet", COMMIT])
def test_sigkill_within_the_transaction(tmp_path: Path, made: str) -> None:
    """Kill as soon as such a file exists: a part of the commit is written, or all of it."""
    lake, model = Lake(tmp_path / "lake"), TableModel(("id",))
    lake.operations.defaults(deletion_vectors=True)
    publish(lake, model, FIRST)
    assert not lake.mirror().failed
    publish(lake, model, SECOND)
    table = lake.table("t").path
    killed, _ = run_until(
        lambda files: any(f.startswith(table) and made in f[len(table) :] for f in files),
        tmp_path / "lake",
        MIRROR,
    )
    assert killed
    publish(lake, model, THIRD)
    check(lake, model, commits=3)
    rows = lake.table("t").changes.read(2).groupBy("_change_type").count().collect()
    kinds = {row["_change_type"]: row["count"] for row in rows}
    balance = kinds.get("insert", 0) - kinds.get("delete", 0)
    assert kinds.get("update_preimage", 0) == kinds.get("update_postimage", 0)
    assert len(FIRST) + balance == sum(model.bag(COLUMNS).values())


def test_another_mirror_that_planned_less_is_obeyed(lake: Lake) -> None:
    """Two mirrors list at different times: the first plan decides the files of the commit."""
    model = TableModel(("id",))
    publish(lake, model, FIRST)

    def publish_more(_table: TableName, done: Step) -> None:
        if done is Step.CHECKED and not done_once:
            done_once.append(True)
            other = Lake(Path(lake.storage.root))
            publish(other, model, SECOND)
            other.mirror(options=MirrorOptions(patience=None))

    done_once: list[bool] = []
    assert not lake.mirror(on_step=publish_more).failed
    publish(lake, model, THIRD)
    check(lake, model, commits=3)
