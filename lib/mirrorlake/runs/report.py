"""A run's report: one HTML file that opens offline, with every notebook, its code folded.

nbconvert renders the notebooks; summary and style are here. The page asks no other machine for
anything: a content policy in its head forbids it, and scripts too.
"""

from __future__ import annotations

import html
import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import DictLoader
from nbconvert.exporters import HTMLExporter
from pygments.formatters import HtmlFormatter

from mirrorlake.runs.notebook_files import ERROR_MARK, nbformat
from mirrorlake.runs.store import REPORT, write_whole

_WIDGETS = "application/vnd.jupyter.widget"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
_FOLDED = """{%- extends 'basic/index.html.j2' -%}
{% block any_cell scoped %}{% if loop.index0 == resources.failing_cell -%}
<div class="failing" id="failing-{{ resources.step }}">{{ super() }}</div>
{%- else %}{{ super() }}{% endif %}{% endblock %}
{% block input_group %}<details class="code"><summary>code</summary>{{ super() }}</details>
{% endblock %}{% block in_prompt %}{% endblock %}{% block output_area_prompt %}{% endblock %}
{% block data_png scoped %}<img src="data:image/png;base64,{{ output.data['image/png'] }}"
 alt="{{ (output | get_metadata('alt', 'image/png') or 'A figure') | escape_html }}"
 {%- set width = output | get_metadata('width', 'image/png') -%}
 {%- if width is not none %} width="{{ width | int }}"{% endif %}>
{% endblock %}
"""
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; color: #1b1f24;
  padding: 0 1rem; background: #fff }
table { border-collapse: collapse; margin: .5rem 0 }
td, th { padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #d8dee4 }
.done { color: #1a7f37 }
.failed, .lost { color: #b42318 }
.stopped, .skipped { color: #8a6100 }
pre { overflow-x: auto; padding: .5rem; background: #f6f8fa }
details.code summary { color: #57606a; cursor: pointer; font-size: .8rem }
.problem { border-left: .3rem solid #b42318; padding: .2rem .8rem; background: #fff1f0 }
section.notebook { border: 1px solid #d8dee4; border-radius: .4rem; margin: 1rem 0;
  padding: 0 1rem }
section.notebook > details > summary { font-size: 1.2rem; padding: .5rem 0; cursor: pointer }
.failing { outline: .2rem solid #b42318; padding: .3rem }
img { max-width: 100% }
"""


def write_report(document: dict[str, Any], folder: Path) -> Path:
    """Writes a run's `report.html`.

    Args:
        document: the run's record.
        folder: where its executed notebooks are.

    Raises:
        OSError: the file can't be written.
    """
    target = folder / REPORT
    write_whole(target, render_report(document, folder))
    return target


def render_report(document: dict[str, Any], folder: Path) -> str:
    """The page of a run's report."""
    title = f"{document['plan']}: {document['status']}"
    style = _STYLE + str(HtmlFormatter().get_style_defs(".highlight"))
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{_text(title)}</title><style>{style}</style></head><body>",
        f'<h1>{_text(document["plan"])} <span class="{_text(document["status"])}">'
        f"{_text(document['status'])}</span></h1>",
        _facts(document),
        _overview(document["steps"]),
    ]
    for index, step in enumerate(document["steps"], 1):
        parts.append(_notebook(index, step, folder))
    return "\n".join([*parts, "</body></html>\n"])


def ready() -> None:
    """Compiles what renders notebooks, so that the first report does not wait for it."""
    cells = [nbformat.v4.new_markdown_cell("#"), nbformat.v4.new_code_cell("1")]  # type: ignore[no-untyped-call]
    _exporter().from_notebook_node(nbformat.v4.new_notebook(cells=cells))  # type: ignore[no-untyped-call]


def _facts(document: dict[str, Any]) -> str:
    known = document.get("versions", {})
    facts = {
        "run": document["run"],
        "started": document["started"],
        "ended": document["ended"],
        "host": document.get("process", {}).get("host", ""),
        "versions": ", ".join(f"{name} {value}" for name, value in known.items()),
        "parameters": _values(document["parameters"]),
    }
    rows = (f"<tr><th>{_text(name)}</th><td>{_text(v)}</td></tr>" for name, v in facts.items() if v)
    return f"<table>{''.join(rows)}</table>"


def _overview(steps: list[dict[str, Any]]) -> str:
    rows = [
        f'<tr><td><a href="#step-{index}">{_text(step["name"])}</a></td>'
        f'<td class="{_text(step["status"])}">{_text(step["status"])}</td>'
        f"<td>{step['seconds']:.1f} s</td><td>{_text(_values(step['records']))}</td></tr>"
        for index, step in enumerate(steps, 1)
    ]
    head = "<tr><th>step</th><th>status</th><th>time</th><th>recorded</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _notebook(index: int, step: dict[str, Any], folder: Path) -> str:
    error = step["error"]
    problem = ""
    if error:
        where = f' <a href="#failing-{index}">cell {error["cell"]}</a>' if error["cell"] else ""
        problem = (
            f'<div class="problem"><b>{_text(error["name"])}</b>{where}'
            f"<p>{_text(error['message'])}</p></div>"
        )
    path = folder / Path(step["output"]).name if step["output"] else None
    body = _rendered(path, index, bool(error)) if path is not None and path.is_file() else ""
    # A failure is in view; what went well is folded.
    shown = " open" if step["status"] != "done" else ""
    return (
        f'<section class="notebook" id="step-{index}"><details{shown}><summary>'
        f'{_text(step["name"])} <span class="{_text(step["status"])}">{_text(step["status"])}'
        f"</span></summary>{problem}{body}</details></section>"
    )


def _rendered(path: Path, index: int, failed: bool) -> str:
    try:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except Exception as error:  # a notebook that was cut off while it was written
        return f"<p>The notebook can't be shown: {_text(error)}</p>"
    cells = [cell for cell in notebook.cells if ERROR_MARK not in cell.metadata.get("tags", [])]
    for cell in cells:
        for output in cell.get("outputs", []):
            for kind in [k for k in output.get("data", {}) if k.startswith(_WIDGETS)]:
                del output["data"][kind]
    failing = [number for number, cell in enumerate(cells) if failed and _is_failing(cell)]
    notebook.cells = cells
    resources = {"step": index, "failing_cell": failing[-1] if failing else None}
    text, _ = _exporter().from_notebook_node(notebook, resources)  # type: ignore[no-untyped-call]
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
        template_name="basic", extra_loaders=[DictLoader({"folded.html.j2": _FOLDED})]
    )
    exporter.template_file = "folded.html.j2"
    exporter.exclude_anchor_links = True
    return exporter


def _values(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}: {v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}"
        for name, v in values.items()
    )


def _text(value: Any) -> str:
    return html.escape(str(value))
