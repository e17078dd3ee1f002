"""A run's report: one HTML file that opens offline, with every notebook, its code folded.

nbconvert renders the notebooks by `report_notebook.html.j2`; the page is `report.html.j2`. It asks
no other machine for anything: a content policy in its head forbids it, and scripts too.
"""

from __future__ import annotations

import html
import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from nbconvert.exporters import HTMLExporter
from pygments.formatters import HtmlFormatter

from mirrorlake_runs.notebook_files import ERROR_MARK, nbformat
from mirrorlake_runs.store import REPORT, write_whole

_TEMPLATES = FileSystemLoader(Path(__file__).parent)
_WIDGETS = "application/vnd.jupyter.widget"


def write_report(document: dict[str, Any], folder: Path) -> None:
    """Writes a run's `report.html`.

    Args:
        document: the run's record.
        folder: where its executed notebooks are.

    Raises:
        OSError: the file can't be written.
    """
    write_whole(folder / REPORT, render_report(document, folder))


def render_report(document: dict[str, Any], folder: Path) -> str:
    """The page of a run's report."""
    known = document.get("versions", {})
    facts = {
        "run": document["run"],
        "started": document["started"],
        "ended": document["ended"],
        "host": document.get("process", {}).get("host", ""),
        "versions": ", ".join(f"{name} {value}" for name, value in known.items()),
        "parameters": _values(document["parameters"]),
    }
    environment = Environment(loader=_TEMPLATES, autoescape=True)
    environment.filters["values"] = _values
    return environment.get_template("report.html.j2").render(
        run=document,
        facts=facts,
        notebooks=[_notebook(n, step, folder) for n, step in enumerate(document["steps"], 1)],
        code_style=HtmlFormatter().get_style_defs(".highlight"),
    )


def ready() -> None:
    """Compiles what renders notebooks, so that the first report does not wait for it."""
    cells = [nbformat.v4.new_markdown_cell("#"), nbformat.v4.new_code_cell("1")]  # type: ignore[no-untyped-call]
    _exporter().from_notebook_node(nbformat.v4.new_notebook(cells=cells))  # type: ignore[no-untyped-call]


def _notebook(index: int, step: dict[str, Any], folder: Path) -> str:
    """An executed notebook's cells; the one that failed has the id that the page leads to."""
    path = folder / Path(step["output"] or "").name
    if not path.is_file():
        return ""
    try:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except Exception as error:  # a notebook that was cut off while it was written
        return f"<p>The notebook can't be shown: {html.escape(str(error))}</p>"
    cells = [cell for cell in notebook.cells if ERROR_MARK not in cell.metadata.get("tags", [])]
    for cell in cells:
        for output in cell.get("outputs", []):
            for kind in [k for k in output.get("data", {}) if k.startswith(_WIDGETS)]:
                del output["data"][kind]
    failing = [number for number, cell in enumerate(cells) if step["error"] and _is_failing(cell)]
    notebook.cells = cells
    resources = {"step": index, "failing_cell": failing[-1] if failing else None}
    text, _ = _exporter().from_notebook_node(notebook, resources)
    return str(text)


def _is_failing(cell: Any) -> bool:
    """Whether a cell is the one that a notebook ended in."""
    if any(output.output_type == "error" for output in cell.get("outputs", [])):
        return True
    known = cell.metadata.get("papermill", {})
    return known.get("start_time") is not None and known.get("status") in ("running", "failed")


@cache
def _exporter() -> HTMLExporter:
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="basic", extra_loaders=[_TEMPLATES]
    )
    exporter.template_file = "report_notebook.html.j2"
    exporter.exclude_anchor_links = True
    return exporter


def _values(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}: {v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}"
        for name, v in values.items()
    )
