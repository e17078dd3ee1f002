"""The tab Runs: what notebooks and plans ran on this machine, and how each of their steps went."""

from __future__ import annotations

import ipywidgets as widgets

from mirrorlake.results import TextTable, moment_text
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Pager, Tab, label
from mirrorlake_runs.store import RunRecord, list_runs

_STATES = {"done": "good", "failed": "bad", "stopped": "warn", "lost": "bad", "running": "idle"}
_MOST = 200


class RunsTab(Tab):
    """The newest runs, and the steps of one."""

    title = "Runs"
    of_table = False

    def _build(self) -> list[widgets.Widget]:
        self._list = Pager("Runs, the newest first")
        self.run = widgets.Dropdown(**label("Run", "36em"))
        self.when_changed(self.run, self._open)
        self._steps = widgets.HTML()
        return [self._list.widget, self.run, self._steps]

    def _fill(self) -> None:
        self._runs = {record.run: record for record in list_runs()}
        found = list(self._runs.values())
        self._list.fill(len(found), lambda start, stop: list_records(found[start:stop]))
        newest = list(self._runs)[:_MOST]
        self.run.options = [(html.plain_text(run), run) for run in newest]
        self._open()

    def _open(self) -> None:
        record = self._runs.get(self.run.value)
        self._steps.value = html.view(
            html.note("No run was kept.") if not record else steps(record)
        )


def list_records(records: list[RunRecord]) -> TextTable:
    """Some runs, a line each."""
    rows = tuple(
        (
            record.run,
            html.dot(_STATES.get(record.status, "idle"), record.status),
            record.plan,
            moment_text(record.started),
            moment_text(record.ended),
        )
        for record in records
    )
    return TextTable(("run", "status", "plan", "started (UTC)", "ended (UTC)"), rows)


def steps(record: RunRecord) -> html.Html:
    """The steps of a run, and what they recorded."""
    rows = []
    for step in record.document.get("steps") or ():
        error = step.get("error") or {}
        said = ", ".join(f"{k}: {v}" for k, v in (step.get("records") or {}).items())
        problem = error.get("message") or error.get("text") or error.get("value") or ""
        status = html.dot(_STATES.get(step.get("status"), "idle"), str(step.get("status")))
        figures = (step.get("attempts"), step.get("seconds"))
        rows.append((step.get("notebook"), status, *figures, html.wide(said, problem)))
    columns = ("notebook", "status", "attempts", "seconds", "records and problems")
    shown = TextTable(columns, tuple(rows))
    return html.table(shown, caption=f"Steps of {record.run}")
