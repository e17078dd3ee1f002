"""Tasks: solutions pass, blank answers get a sentence, and typical mistakes their own hints."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from helpers.lessons import closing, opening
from helpers.project import NOTEBOOKS, PROJECT
from mirrorlake import Lake, MaintenancePolicy
from mirrorlake.delta.commits import Commit, History
from mirrorlake.errors import CheckError
from mirrorlake.layout.maintenance import Maintenance
from mirrorlake.partitioning.policy import parse_policy
from mirrorlake.results import TextTable
from mirrorlake.views.explain import Explanation, SourceState
from mirrorlake_lab import check, find_solution, lessons
from mirrorlake_lab.course import lessons as course
from mirrorlake_lab.course import task_checks

ALL = list(course.tasks().values())
MOVE = {"__rowMarker__": 1, "EmployeeID": "E0001", "EmployeeLocation": "Bellevue"}
STAY = MOVE | {"EmployeeLocation": "Redmond"}
SHOP = [
    {"id": key, "item": item, "n": n, "__rowMarker__": 4}
    for key, item, n in ((1, "bolt", 35), (4, "hook", 5), (3, "screw", 70), (5, "washer", 80))
]
OLD = {"id": 5, "__rowMarker__": 2}
WASHER = {"id": 9, "item": "washer", "n": 75, "shelf": "1B", "__rowMarker__": 4}
FLIGHTS = pa.table({"origin": ["LGA", "EWR", "LGA"], "carrier": ["UA", "UA", "AA"]})
QUERIED = TextTable(("origin", "n"), (("EWR", 3), ("LGA", 2)))  # the result of each query
POLICY = MaintenancePolicy(
    tables="visits", reorg=False, target_mib=256, min_files=10, retention_hours=336
)
WEEKS = {"Reference": "2013-01-01", "RangeSize": "7.00:00:00"}
STOCK = [
    {"id": key, "item": item, "_row_id": row_id}
    for key, item, row_id in ((30, "washer", 3), (1, "nut", 1), (2, "screw", 2), (7, "nail", 4))
]


def history(*commits: tuple[int, int]) -> History:
    """Return the history of a table whose versions each have a number of rows, up to a file."""
    made = [
        Commit(
            version,
            operation="WRITE",
            metrics={"numOutputRows": rows},
            note=f'{{"incarnation": "a", "last": {file}}}',
        )
        for version, (rows, file) in enumerate(commits, 1)
    ]
    return History((*reversed(made), Commit(0, operation="CREATE TABLE")))


def weekly(kind: str = "UniformRange", **changes: Any) -> Any:
    """Return a policy of weeks, with some of its values changed."""
    span = changes.pop("span", WEEKS)
    key = {"ColumnName": changes.pop("column", "time_hour"), "Kind": kind, "Properties": span}
    return parse_policy({"PartitionKeys": [key], "EffectiveDateTime": "2000-01-01"} | changes)


def explained(view: str = "worst", method: str = "extremes", function: str = "max") -> Any:
    sql = f"SELECT carrier, {function}(arr_delay) AS longest FROM flights GROUP BY carrier"
    return Explanation(view, sql, method, "nothing", None, (), {}, {})


def totals(table: str = "delays", method: str = "sums", total: str = "sum(flights)") -> Any:
    sql = f"SELECT airline, {total} AS flights FROM {table} GROUP BY airline"
    sources = (SourceState(table, 1, 1, 0, None, ""),)
    return replace(explained("totals", method), sql=sql, sources=sources)


# The right answers of tasks whose solutions need Spark.
RIGHT: dict[str, Any] = {
    "02-5": history((1, 1), (1, 2)),
    "12-5": weekly(),
    "13-3": STOCK,
    "14-4": explained(),
    "14-5": totals(),
}
# An answer for each mistake that a function of `CHECKERS` returns.
MISTAKES: dict[str, dict[str, Any]] = {
    "01-2": {
        "text": [MOVE | {"__rowMarker__": "1"}],
        "twice": [MOVE | {"__rowMarker__": 0}],
        "still": [STAY],
        "others": [MOVE, MOVE | {"EmployeeID": "E0002"}],
        "unreadable": [MOVE | {"__rowMarker__": 3}],
    },
    "01-5": {
        "missing": lambda lake: lake,
        "keys": lambda lake: gates(lake, [], keys=()),
        "closed": lambda lake: gates(lake, [{"gate": "B2", "terminal": 3, "__rowMarker__": 1}]),
        "moved": lambda lake: gates(lake, [{"gate": "A1", "__rowMarker__": 2}]),
        "final": lambda lake: gates(lake, [], opened=[{"gate": "B2", "terminal": 3}]),
        "unreadable": "gates",
    },
    "02-5": {
        "together": history((2, 2)),
        "more": history((2, 2), (1, 3)),
        "rows": history((1, 1), (2, 2)),
        "unreadable": "gates",
    },
    "04-1": {
        "null-key": [SHOP[0], SHOP[1] | {"id": None}, *SHOP[2:]],
        "marker": [*SHOP[:2], SHOP[2] | {"__rowMarker__": 9}, SHOP[3]],
        "fewer": [SHOP[0], SHOP[3]],
        "other": [*SHOP[:3], SHOP[3] | {"id": 9}],
        "upsert": [*SHOP[:2], SHOP[2] | {"__rowMarker__": 2}, SHOP[3]],
        "lost": [{"id": row["id"], "__rowMarker__": 4} for row in SHOP],
        "unreadable": 4,
    },
    "15-4": {
        "both": [WASHER | {"__rowMarker__": 1}],
        "gone": [OLD],
        "still": [],
        "lost": [OLD, {"id": 9, "__rowMarker__": 4, "item": "washer"}],
        "unreadable": [OLD, {"item": "washer", "__rowMarker__": 4}],
    },
    "07-3": {
        "apply": replace(POLICY, apply=True),
        "tables": replace(POLICY, tables=""),
        "reorg": replace(POLICY, reorg=True),
        "optimize": replace(POLICY, optimize=False),
        "vacuum": replace(POLICY, vacuum=False),
        "retention_hours": Maintenance(replace(POLICY, retention_hours=14), ()),
        "min_files": replace(POLICY, min_files=4),
        "target_mib": replace(POLICY, target_mib=128),
        "unreadable": {"tables": "visits"},
    },
    "11-4": {
        "origin": FLIGHTS,
        "carrier": pa.table({"origin": ["E"] * 3, "carrier": ["UA", "AA", "UA"]}),
        "unreadable": FLIGHTS.select(["origin"]),
    },
    "12-5": {
        "kind": weekly("Hash", span={"MaxPartitionCount": 8}),
        "column": weekly(column="tailnum"),
        "size": weekly(span=WEEKS | {"RangeSize": "1.00:00:00"}),
        "reference": weekly(span=WEEKS | {"Reference": "2021-01-01"}),
        "existing": weekly(EffectiveDateTime="2999-01-01"),
        "unreadable": "weeks",
    },
    "13-3": {
        "still": [STOCK[0] | {"id": 3}, *STOCK[1:]],
        "new-id": [STOCK[0] | {"_row_id": 5}, *STOCK[1:]],
        "others": [row | {"id": 30} for row in STOCK],
        "unreadable": [{"item": "washer"}],
    },
    "14-4": {
        "full": explained(method="full"),
        "other": explained("longest"),
        "longest": explained(function="min"),
        "unreadable": "worst",
    },
    "14-5": {
        "table": totals("flights"),
        "full": totals(method="full"),
        "months": totals(total="count(*)"),
        "other": explained(),
        "unreadable": "totals",
    },
    "10-3": {"too-small": "F64", "too-large": "F2048", "unknown": "P4"},
}


@pytest.fixture(autouse=True)
def _forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path))  # where passed tasks are recorded
    check.forget()
    yield
    check.forget()


class QueriedLake(Lake):
    """A lake whose queries have a known result, because unit tests start no Spark."""

    def sql(self, query: str, **_: Any) -> Any:
        return QUERIED


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a lake with four files of flights, and a table whose version 0 has six files."""
    lake = QueriedLake(tmp_path / "lake")
    flights = lake.publisher("flights", keys=["id"])
    for number in range(4):
        flights.upsert([{"id": number}])
    adds = [f'{{"add": {{"path": "{number}.parquet"}}}}' for number in range(6)]
    log = "\n".join(['{"commitInfo": {}}', '{"metaData": {}}', *adds, ""])
    lake.storage.write(f"Tables/planes/_delta_log/{0:020}.json", log.encode())
    return lake


BOTH = [{"gate": "A1", "terminal": 1}, {"gate": "B2", "terminal": 2}]


def gates(
    lake: Lake, changes: list[dict[str, Any]], keys: Any = ("gate",), opened: Any = BOTH
) -> Lake:
    publisher = lake.publisher("gates", keys=keys)
    publisher.insert(opened)
    if changes:
        publisher.write(changes)
    return lake


def solve(task: course.Task, lake: Lake) -> Any:
    """Return the answer of a lesson's solution; a solution can publish into the lake.

    If the solution needs Spark, return the right answer. The stored outputs of the lessons show
    that these solutions pass.
    """
    solution = find_solution(task.number)
    if task.query:
        return QUERIED
    if task.checked_by and task.number in RIGHT:
        return RIGHT[task.number]
    if re.search(r"\b(lake|table|shop)\.", solution):
        return task.answers[0]
    invalid_rows = [SHOP[0], SHOP[1] | {"id": None}, SHOP[2] | {"__rowMarker__": 9}, SHOP[3]]
    names: dict[str, Any] = {"practice": lake, "invalid_rows": invalid_rows}
    names |= {"MaintenancePolicy": MaintenancePolicy, "file_before": FLIGHTS}
    exec(solution, names)
    return names["answer"]


def said(number: str, answer: Any, capsys: pytest.CaptureFixture[str], *more: Any) -> str:
    check.task(number, answer, *more)
    (sentence,) = re.findall(r"'text/plain': (?:'|\")(.*?)(?:'|\"), 'text/html'",
                             capsys.readouterr().out)  # fmt: skip
    return str(sentence)


def test_there_are_tasks_in_every_lesson() -> None:
    assert len(ALL) >= 35
    assert list(lessons()) == list(course.lesson_paths())
    for lesson in lessons().values():
        assert 3 <= len(lesson.tasks) <= 6
        lines = [len(find_solution(task.number).splitlines()) for task in lesson.tasks]
        assert any(2 <= count <= 6 for count in lines), f"{lesson.number}: no task to write code"
        assert 20 <= lesson.minutes <= 40
        assert [task.number for task in lesson.tasks] == [
            f"{lesson.number}-{index}" for index, _ in enumerate(lesson.tasks, 1)
        ]
        assert all(need < lesson.number for need in lesson.needs)


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.number)
def test_solutions_pass(task: course.Task, lake: Lake) -> None:
    verdict = check.judge(task, solve(task, lake), lake)
    assert verdict.passed, verdict.hint


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.number)
def test_a_blank_answer_gets_a_sentence(
    task: course.Task, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    for blank in (None, ...):
        sentence = said(task.number, blank, capsys, lake)
        assert sentence.startswith(f"✗ {task.number}: No answer yet.")
    with pytest.raises(CheckError, match=task.number):
        check.demand(task.number)


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.number)
def test_typical_mistakes_get_their_own_hints(task: course.Task, lake: Lake) -> None:
    assert len(task.mistakes) >= 2
    hints = {mistake.hint for mistake in task.mistakes}
    assert len(hints | set(task.hints)) > len(task.hints) + 1
    for mistake in task.mistakes:
        answer = MISTAKES[task.number][mistake.answer] if task.checked_by else mistake.answer
        if callable(answer):  # an effect on a lake
            shutil.rmtree(f"{lake.storage.root}/Files/LandingZone/gates", ignore_errors=True)
            answer = answer(lake)
        verdict = check.judge(task, answer, lake)
        assert not verdict.passed
        assert verdict.hint == mistake.hint


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.number)
def test_a_hint_never_has_the_solution(task: course.Task) -> None:
    solution = find_solution(task.number).partition("answer = ")[2]
    texts = [*task.hints, *(mistake.hint for mistake in task.mistakes)]
    for text in texts:
        assert "answer =" not in text
        assert solution.strip("\"'") not in text or len(solution) < 6, (task.number, text)


@pytest.mark.parametrize(
    "answer",
    [object(), "", [], {}, {"a": 1}, float("nan"), "some other text", [object()], -1, b"x", set()],
    ids=lambda answer: type(answer).__name__,
)
def test_no_answer_makes_an_exception(answer: Any, lake: Lake) -> None:
    for task in ALL:
        verdict = check.judge(task, answer, lake)
        assert isinstance(verdict.hint, str)


def test_hints_come_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    task = course.tasks()["02-1"]
    sentences = [said("02-1", 17, capsys) for _ in range(3)]
    assert [sentence.partition("Not yet. ")[2] for sentence in sentences[:2]] == list(task.hints)
    assert f"Read docs/{task.read}" in sentences[2]
    assert "Between two of these commits" in said("02-1", 3, capsys)  # a mistake keeps its own hint
    assert said("02-1", 1, capsys).startswith("✓ 02-1: Correct. A cycle makes one commit")
    check.demand("02-1")


def test_hints_and_solutions_need_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    task = course.tasks()["02-1"]
    for _ in range(3):
        check.hint("02-1")
    assert capsys.readouterr().out.splitlines()[:2] == list(task.hints)
    assert f"Read docs/{task.read}" in said("02-1", 17, capsys)
    check.solution("02-1")
    check.hint("99-9")
    said_last = "There is no such task. The number of a task is written like 01-2."
    assert capsys.readouterr().out == f"answer = 1\n{said_last}\n"


def test_progress_counts_the_passed_tasks_of_all_notebooks(
    capsys: pytest.CaptureFixture[str], lake: Lake
) -> None:
    said("02-1", 3, capsys)
    said("02-1", 1, capsys)
    check.forget()  # a new kernel
    said("02-1", 3, capsys)  # a passed task stays passed
    rows = {row[0]: row[1:] for row in check.progress().rows}
    of = len(lessons()["02"].tasks)
    assert rows["02_mirror"] == (1, of, "started")
    assert rows["03_query"] == (0, len(lessons()["03"].tasks), "")
    assert rows["course"] == (1, len(ALL), "started")
    for task in ALL:
        said(task.number, solve(task, lake), capsys, lake)
    assert {row[3] for row in check.progress().rows} == {"finished"}


def test_a_proof_counts_only_after_the_repairs(
    capsys: pytest.CaptureFixture[str], lake: Lake
) -> None:
    proof: dict[str, Any] = {"orders": [], "stock": [], "prices": []}
    for number in ("17-3", "17-5"):
        said(number, solve(check.tasks()[number], lake), capsys, lake)
    assert "counts after 17-4, which" in said("17-6", proof, capsys)
    said("17-4", solve(check.tasks()["17-4"], lake), capsys, lake)
    assert said("17-6", proof, capsys).startswith("✓ 17-6")


def test_a_check_never_gets_the_answer_to_an_earlier_task(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both tasks have the same right answer, and the code for the second one has failed."""
    names = SimpleNamespace(user_ns={"answer": 0})
    monkeypatch.setattr("IPython.get_ipython", lambda: names)
    assert said("10-1", names.user_ns["answer"], capsys).startswith("✓ 10-1")
    assert said("10-2", names.user_ns["answer"], capsys).startswith("✗ 10-2: No answer yet.")
    assert said("10-1", names.user_ns["answer"], capsys).startswith("✓ 10-1")  # its cell runs again
    names.user_ns["answer"] = 0
    assert said("10-2", names.user_ns["answer"], capsys).startswith("✓ 10-2")


def test_a_check_records_whether_it_was_passed(capsys: pytest.CaptureFixture[str]) -> None:
    check.task("02-1", 3)
    assert "record+json': {'02-1': False}" in capsys.readouterr().out
    check.task("02-1", 1)
    assert "record+json': {'02-1': True}" in capsys.readouterr().out


def test_what_can_not_be_looked_at_gets_a_sentence(
    capsys: pytest.CaptureFixture[str], lake: Lake
) -> None:
    assert "There is no such task" in said("99-9", 1, capsys)
    assert "Pass the lake as well" in said("12-1", 6, capsys)
    assert "could not be checked" in said("12-1", 6, capsys, Lake(f"{lake.storage.root}-other"))
    assert "The answer is a number, and yours is a text" in said("02-1", "one", capsys)
    assert "a number, and yours is a DataFrame" in said("05-3", pd.DataFrame({"n": [10]}), capsys)


def test_a_gate_may_have_its_terminal_as_text(lake: Lake) -> None:
    """An update without the column gets the hint that a row is replaced as a whole."""
    publisher = lake.publisher("gates", keys=["gate"])
    publisher.insert([{"gate": "A1", "terminal": "1"}, {"gate": "B2", "terminal": "2"}])
    publisher.delete([{"gate": "A1"}])
    publisher.update([{"gate": "B2"}])
    task = course.tasks()["01-5"]
    assert "An update contains the whole row" in check.judge(task, lake).hint
    publisher.update([{"gate": "B2", "terminal": "3"}])
    assert check.judge(task, lake).passed


def test_a_gate_may_have_its_terminal_as_float(lake: Lake) -> None:
    """A DataFrame whose deletes have no terminal has floats; the mirror moves applied files."""
    changes = [("A1", 1, 0), ("B2", 2, 0), ("A1", None, 2), ("B2", 3, 1)]
    rows = pd.DataFrame(changes, columns=["gate", "terminal", "__rowMarker__"])
    lake.publisher("gates", keys=["gate"]).write(rows)
    task = course.tasks()["01-5"]
    assert check.judge(task, lake).passed
    name = f"{1:020}.parquet"
    folder = lake.storage.local / "Files/LandingZone/gates"
    (folder / "_ProcessedFiles").mkdir()
    (folder / name).rename(folder / "_ProcessedFiles" / name)
    assert check.judge(task, lake).passed


def test_a_policy_of_now_is_not_one_of_yesterday(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy has its times in UTC, in which the day may have begun later than here."""

    class Clock:
        @staticmethod
        def now(zone: timezone = timezone(timedelta(hours=10))) -> datetime:
            return datetime(2026, 1, 1, 19, tzinfo=timezone.utc).astimezone(zone)

    monkeypatch.setattr(task_checks, "datetime", Clock)
    assert task_checks.weekly_policy(weekly(EffectiveDateTime="2026-01-01T19:00:00")) == "existing"
    assert task_checks.weekly_policy(weekly(EffectiveDateTime="2025-12-31T19:00:00")) == ""


def test_values_are_compared_and_not_their_types() -> None:
    assert check.plain(np.int64(3)) == check.plain(3.0) == check.plain(3)
    assert check.plain(np.array([1, 2])) == check.plain((1, 2))
    assert check.plain(True) == check.plain("Yes")
    assert check.plain({"b", "a"}) == check.plain(["a", "b"])
    assert check.plain("3") != check.plain(3)
    assert check.plain({"b": 2, "a": [1]}) == check.plain({"a": (1.0,), "b": 2})
    table = pd.DataFrame({"origin": ["LGA", "EWR"], "item": [150, 133]})
    for same in (table, TextTable(("a", "b"), (("LGA", 150), ("EWR", 133)))):
        assert check.plain(same) == check.plain([["LGA", 150], ["EWR", 133]])
        assert check.plain(same, unordered=True) == check.plain([("EWR", 133.0), ("lga", 150)])
    assert check.plain(table[["origin"]]) == check.plain(["LGA", "EWR"])


def test_collected_rows_are_the_rows_of_a_table() -> None:
    """Rows of `collect`, dicts and Arrow tables are equal to the DataFrame that they come from."""
    both = [["nut", 40], ["screw", 80]]
    arrow = pa.table({"item": ["nut", "screw"], "cents": [40, 80]})
    for same in (arrow, arrow.to_pylist(), [Row(item=item, cents=cents) for item, cents in both]):
        assert check.plain(same) == check.plain(both)
    names = arrow.select(["item"])
    for same in (names, names.to_pylist(), [Row(item="nut"), Row(item="screw")]):
        assert check.judge(course.tasks()["17-2"], same).passed
    assert check.judge(course.tasks()["05-3"], Row(stock=10)).passed
    assert "yours is a table" in check.judge(course.tasks()["05-3"], names).hint


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        ("03-2", "left_anti"),
        ("03-2", "leftanti"),
        ("03-2", "LEFT ANTI-JOIN"),
        ("12-4", pd.Timestamp("2021-01-15")),
        ("01-1", "(b)"),
        ("01-1", "B)"),
        ("01-3", "NULL."),
        ("06-4", "100 %"),
        ("14-3", "a, c"),
        ("14-3", "(c) and (a)"),
        ("14-3", ["a)", "c."]),
    ],
)
def test_other_forms_of_a_right_answer_pass(number: str, answer: Any) -> None:
    """These are the names of the join in PySpark, and a date that was computed."""
    assert check.judge(course.tasks()[number], answer).passed


def test_columns_are_compared_by_name() -> None:
    """In another order they are right, as Spark, pandas, Arrow or dicts return them."""
    task = course.tasks()["17-4"]
    swapped = pa.table({"N": [40, 25, 40, 3], "item": ["bolt", "nut", "screw", "hook"]})
    table = swapped.to_pandas()
    rows = [Row(n=n, item=item) for n, item in zip(*swapped.to_pydict().values(), strict=True)]
    both: list[Any] = [swapped, swapped.to_pylist(), table, rows]
    both += [table.set_index("item"), table.set_index("item")["N"]]
    for same in both:
        assert check.judge(task, same).passed
    named = swapped.rename_columns(["number", "item"])  # the only column without a right name
    assert check.judge(task, named).passed
    assert not check.judge(task, swapped.rename_columns(["item", "n"])).passed
    assert not check.judge(task, table["item"]).passed


def test_columns_of_a_query_are_compared_by_name(lake: Lake) -> None:
    swapped = TextTable(("flights", "Origin"), tuple(row[::-1] for row in QUERIED.rows))
    assert check.judge(course.tasks()["03-4"], swapped, lake).passed


@pytest.mark.parametrize(
    ("number", "answer", "sentence"),
    [
        ("01-1", 2, "The answer is a letter in quotes, and yours is a number."),
        ("01-1", "refused", "The answer is a letter in quotes, and yours is a text."),
        ("02-1", "one", "The answer is a number, and yours is a text."),
        ("02-1", True, "The answer is a number, and yours is a bool."),
        ("04-2", b"x", "in quotes, and yours is a value of the type bytes."),
        ("03-3", object(), "a text in quotes, and yours is a value of the type object."),
        ("12-4", "15.1.2021", 'The answer is a date such as "2021-01-31", and yours is a text.'),
        ("17-1", ["stock"], "The answer is a dict of names and numbers, and yours is a list."),
        ("17-4", 4, "The answer is the rows of the table, and yours is a number."),
        ("01-2", "x", "Give a list of dicts, each with a key and a marker of 0, 1, 2 or 4."),
    ],
)
def test_a_wrong_form_is_always_named(
    number: str, answer: Any, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        assert sentence in said(number, answer, capsys)
    check.hint(number)
    assert capsys.readouterr().out.strip() == course.tasks()[number].hints[0]


def test_nothing_that_is_named_is_missing() -> None:
    for lesson in lessons().values():
        assert (NOTEBOOKS / f"{lesson.tool}.ipynb").is_file()
        assert (PROJECT / "docs" / f"{lesson.docs}.md").is_file()
    for task in ALL:
        assert (PROJECT / "docs" / task.read).is_file(), task.number
        assert task.checked_by is None or task.checked_by in task_checks.CHECKERS
        assert task.computed_by is None or task.computed_by in task_checks.ANSWERS
        sources = (task.answers, task.query, task.checked_by, task.computed_by)
        assert sum(map(bool, sources)) == 1


def test_no_output_reveals_the_answer_of_a_later_task() -> None:
    compared = 0
    for path in (NOTEBOOKS / "learn").glob("*.ipynb"):
        lines: list[str] = []
        for cell in nbformat.read(path, as_version=4).cells:
            for task in ALL:
                answer = task.answers[0] if task.answers else None
                # Letters of choices are in every line.
                texts = isinstance(answer, list) and all(len(str(one)) > 2 for one in answer)
                if f"### Task {task.number}:" in cell.source and texts and len(answer) > 1:
                    given = [line for line in lines if all(str(one) in line for one in answer)]
                    assert given == [], task.number
                    compared += 1
            for output in cell.get("outputs", ()):
                text = output.get("text") or output.get("data", {}).get("text/plain", "")
                lines += text.splitlines()
    assert compared >= 5


@pytest.mark.parametrize("number", list(lessons()))
def test_a_lesson_has_its_tasks_and_links(number: str) -> None:
    lesson, path = lessons()[number], course.lesson_paths()[number]
    notebook = nbformat.read(path, as_version=4)
    assert notebook.cells[1].source == opening(lesson)
    assert notebook.cells[-1].source == closing(lesson)
    assert f"**[{lesson.part}]**" in opening(lesson)
    assert notebook.cells[2].source.endswith(f'\nplot_system("{lesson.part}")')
    found = []
    for index, cell in enumerate(notebook.cells):
        if call := re.match(r'check\.task\("(\d\d-\d)"', cell.source):
            ask, solution = notebook.cells[index - 2], notebook.cells[index - 1]
            task = course.tasks()[call[1]]
            assert ask.source.startswith(f"### Task {call[1]}: {task.title}\n")
            assert solution.metadata.tags == ["solution"]
            assert "answer = " in solution.source
            (output,) = cell.outputs
            assert output.data["text/plain"] == f"✓ {call[1]}: Correct. {task.right}"
            found.append(call[1])
    assert found == [task.number for task in lesson.tasks]
    for cell in notebook.cells:
        for link in re.findall(r"\]\(((?!https?:)[^)#]+)\)", cell.source):
            if cell.cell_type == "markdown":
                assert (path.parent / link).is_file(), link


@pytest.mark.parametrize(("number", "first"), [("02", ["01"]), ("03", ["01", "02"])])
def test_lessons_that_read_the_lake_of_others_name_these(number: str, first: list[str]) -> None:
    """The cell that fails without this lake, or the text above it, names them."""
    cells = nbformat.read(course.lesson_paths()[number], as_version=4).cells
    index = next(i for i, cell in enumerate(cells) if cell.source.startswith("lake = "))
    for cell in cells[index - 1 : index + 1] if number == "03" else cells[index : index + 1]:
        assert all(one in cell.source for one in first)
    assert 'root: str = "lakes/flights"' in cells[4].source


def test_markers_are_explained_before_a_task_wants_them() -> None:
    cells = nbformat.read(course.lesson_paths()["01"], as_version=4).cells
    first = next(cell for cell in cells if "`__rowMarker__`" in cell.source)
    assert "| marker |" in first.source


@pytest.mark.parametrize(
    ("number", "name"),
    [
        ("01-5", "publisher"),
        ("02-5", "table"),
        ("06-3", "query"),
        ("10-3", "sku"),
        ("11-4", "table"),
    ],
)
def test_no_cell_after_a_task_reads_a_name_that_an_answer_may_assign(
    number: str, name: str
) -> None:
    cells = nbformat.read(course.lesson_paths()[number[:2]], as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    check_cell = next(i for i, source in enumerate(sources) if f'check.task("{number}"' in source)
    for source in sources[check_cell + 1 :]:
        assert name not in {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}


def test_the_last_cells_of_lesson_14_need_no_view_of_an_answer() -> None:
    """Without an answer, the views `worst` and `totals` do not exist."""
    cells = nbformat.read(course.lesson_paths()["14"], as_version=4).cells
    (cell,) = [cell for cell in cells if "refresh_all(" in cell.source]
    assert "refresh_all()" in cell.source


def test_the_page_is_printed_from_the_tasks() -> None:
    assert (PROJECT / "docs" / "course.md").read_text(encoding="utf-8") == course.course_page()
    for numbers in course.PATHS.values():
        for index, number in enumerate(numbers):
            assert set(lessons()[number].needs) <= set(numbers[:index]), (numbers, number)
