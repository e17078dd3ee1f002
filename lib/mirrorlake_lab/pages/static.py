"""The explorer's twin without scripts: what can be shown of a lake without Spark, as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorlake.delta.commits import CommitLog
from mirrorlake.delta.snapshot import open_snapshot
from mirrorlake.errors import MirrorlakeError
from mirrorlake.layout.guardrails import skus
from mirrorlake.names import TableName
from mirrorlake.results import TextTable
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.facts import columns_of, files_of, properties_of
from mirrorlake_lab.pages.files import gauges, list_files
from mirrorlake_lab.pages.health import read_health
from mirrorlake_lab.pages.monitor import render_health
from mirrorlake_lab.pages.runs import list_records
from mirrorlake_lab.pages.tables import table_facts
from mirrorlake_lab.pages.versions import draw_strip, readable_text
from mirrorlake_runs.store import list_runs

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

_MOST_TABLES = 200
_MOST_ROWS = 25
_STRIP = 40


def render_lake(lake: Lake) -> html.Html:
    """How replication is, then each table in a part that opens, then the newest runs."""
    names = lake.tables()
    parts = [render_health(read_health(lake)), html.heading("Tables")]
    for name in names[:_MOST_TABLES]:
        inner = render_table(lake, name)
        parts.append(
            html.Html(f"<details><summary>{html.text(str(name))}</summary>{inner}</details>")
        )
    if len(names) > _MOST_TABLES:
        parts.append(html.note(f"and {len(names) - _MOST_TABLES:,} more tables"))
    runs = list_runs()[:_MOST_ROWS]
    parts += [html.heading("Runs"), html.table(list_records(runs)) if runs else html.note("none")]
    return html.join(*parts)


def render_table(lake: Lake, name: TableName) -> html.Html:
    """One table: facts, columns, versions, files; one that can't be read says why."""
    try:
        return _render(lake, name)
    except (MirrorlakeError, OSError, ValueError, KeyError) as error:
        return html.Html(f"<p>{html.dot('bad', f'{name} can not be read: {error}')}</p>")


def _render(lake: Lake, name: TableName) -> html.Html:
    storage = lake.storage
    snapshot = open_snapshot(storage, name)
    history = CommitLog(storage, name.table_path).read(snapshot.version, _STRIP)
    files = files_of(storage, name, snapshot)
    return html.join(
        html.heading(str(name)),
        table_facts(storage, name, snapshot),
        _first(columns_of(snapshot), "Columns"),
        _first(properties_of(snapshot), "Properties"),
        draw_strip(list(reversed(history.commits)), snapshot.version),
        _first(history.shown(), "The newest versions"),
        readable_text(storage, name),
        gauges(files, next(iter(skus()))),
        _first(list_files(files[: _MOST_ROWS + 1]), "The largest files"),
    )


def _first(rows: TextTable, caption: str) -> html.Html:
    shown = html.table(TextTable(rows.columns, rows.rows[:_MOST_ROWS]), caption=caption)
    more = len(rows.rows) > _MOST_ROWS or rows.more
    return html.join(shown, html.note("and more") if more else "")
