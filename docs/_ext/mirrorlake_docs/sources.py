"""Write the site's sources: docs, notebooks with their stored outputs, and generated pages.

The folder has the project's layout, so links that work in the project work on the site.
"""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path
from typing import Any

from mirrorlake.cli.main import command
from mirrorlake.storage.paths import NOTEBOOKS, PROJECT
from mirrorlake_docs.api_pages import api_pages
from mirrorlake_docs.code_facts import (
    commands_page,
    errors_page,
    guardrails_page,
    parameters_page,
    promises_page,
)
from mirrorlake_docs.contents import first_page
from mirrorlake_docs.figures import draw_figures
from mirrorlake_docs.messages import messages_page
from mirrorlake_lab.course.lessons import SOLUTION
from mirrorlake_runs.notebook_files import first_words, nbformat
from mirrorlake_runs.plan import notebook_names
from mirrorlake_runs.records import MIME

DOCS = PROJECT / "docs"
_NAMED = re.compile(r"(?<![\[/`])`docs/([\w-]+(?:/[\w-]+)?)\.md`(?!\])")
_CHECK = "check.task("
_BARE = {"image/png": ("text/plain",), "text/html": ("text/plain",)}


def write_sources(folder: Path) -> None:
    """Write everything that Sphinx reads.

    Args:
        folder: an empty folder.
    """
    left_out = shutil.ignore_patterns("_static", "_ext", "conf.py", "index.md")
    shutil.copytree(DOCS, folder / "docs", ignore=left_out)
    (folder / "index.md").write_text(first_page(DOCS), encoding="utf-8")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copyfile(PROJECT / name, folder / name)
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(_link_docs(text, page, folder), encoding="utf-8")
    for name in notebook_names():
        source = NOTEBOOKS / f"{name}.ipynb"
        target = folder / "notebooks" / f"{name}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        notebook = nbformat.read(source, as_version=4)  # type: ignore[no-untyped-call]
        _prepare(notebook, target, folder)
        nbformat.write(notebook, target)  # type: ignore[no-untyped-call]
    _write_tools(folder)
    _write_reference(folder / "reference")
    draw_figures(folder / "docs" / "pictures")


def _write_reference(folder: Path) -> None:
    (folder / "api").mkdir(parents=True)
    pages = {
        "commands": commands_page(command()),
        "parameters": parameters_page(),
        "errors": errors_page(),
        "messages": messages_page(),
        "promises": promises_page(),
        "guardrails": guardrails_page(),
    }
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    for name, text in api_pages():
        (folder / "api" / f"{name}.rst").write_text(text, encoding="utf-8")


def _write_tools(folder: Path) -> None:
    """Write the page of all tools, with the purpose and the first chart of each."""
    lines = [
        "# Tools",
        "",
        "Each tool is a notebook for your own lake. By default it uses the sample lake, which"
        " `./mirrorlake sample lakes/sample` creates. `./mirrorlake run NAME -p root=/data/lake`"
        " runs a tool with papermill, and `./mirrorlake lab` opens copies of all tools.",
        "",
    ]
    names = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    for name in names:
        path = NOTEBOOKS / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        title, said = first_words(notebook)
        lines += [f"## [{title}]({name}.ipynb)", "", said, ""]
        lines += ["```sh", f"./mirrorlake run {name}", "```", ""]
        lines += _first_picture(notebook, name, folder / "notebooks" / "pictures")
    lines += ["```{toctree}", ":hidden:", "", *names, "```", ""]
    (folder / "notebooks" / "tools.md").write_text("\n".join(lines), encoding="utf-8")


def _first_picture(notebook: Any, name: str, folder: Path) -> list[str]:
    """Write the first chart of a tool to a file, and return the lines that show it."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" not in output.get("data", {}):
                continue
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.png").write_bytes(base64.b64decode(output.data["image/png"]))
            facts = output.metadata["image/png"]
            shown = [f":alt: {facts['alt']}", f":width: {facts['width']}px"]
            return [f"```{{image}} pictures/{name}.png", *shown, "```", ""]
    return []


def _prepare(notebook: Any, page: Path, folder: Path) -> None:
    """Fold solutions and the outputs of checks, and turn names of pages into links."""
    for cell in notebook.cells:
        tags = list(cell.metadata.get("tags", []))
        if SOLUTION in tags:
            cell.metadata["tags"] = [*tags, "hide-input"]
        if cell.source.startswith(_CHECK):
            cell.metadata["tags"] = [*tags, "hide-output"]
        if cell.cell_type == "markdown":
            cell.source = _link_docs(cell.source, page, folder)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            data.pop(MIME, None)
            words = output.get("metadata", {}).get("image/png", {}).get("alt")
            if words:  # MyST-NB reads alternative texts from the cell only
                cell.metadata["mystnb"] = {"image": {"alt": words}}
            for kind, plainer in _BARE.items():
                for other in plainer if kind in data else ():
                    data.pop(other, None)


def _link_docs(text: str, page: Path, folder: Path) -> str:
    """Replace each page in backticks, such as `docs/views.md`, by a link to it."""
    up = "../" * (len(page.relative_to(folder).parts) - 1)

    def link(found: re.Match[str]) -> str:
        target = DOCS / f"{found[1]}.md"
        if not target.is_file():
            return found[0]
        title = target.read_text(encoding="utf-8").partition("\n")[0]
        return f"[{title.lstrip('# ')}]({up}docs/{found[1]}.md)"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _NAMED.sub(link, part) for part in parts)
