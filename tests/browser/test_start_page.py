"""What `lab` opens: the start page, its links, and every notebook without a trace of trouble."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mirrorlake.paths import NOTEBOOKS

TOASTS = ".Toastify__toast"
OPENED = """name => { const found = [...window.jupyterapp.shell.widgets('main')].find(
    one => one.context?.path === name); return Boolean(found?.context?.isReady); }"""
DIRTY = """() => [...window.jupyterapp.shell.widgets('main')]
    .filter(one => one.context?.model?.dirty).map(one => one.context.path)"""
EMPTY = """() => [...document.querySelectorAll('.jp-OutputArea img')]
    .filter(one => one.complete && !one.naturalWidth).length"""


def open_path(page: Any, path: str) -> None:
    page.evaluate(
        "path => window.jupyterapp.commands.execute('docmanager:open', {path, kernel: null})", path
    )
    page.wait_for_function(OPENED, arg=path)


def test_lab_opens_at_a_page_that_leads_on(
    visit: Any, save_picture: Callable[[Any, str], None]
) -> None:
    assert visit.locator(".jp-MarkdownViewer h1").inner_text().startswith("mirrorlake")
    links = visit.locator(".jp-MarkdownViewer td a")
    assert links.count() == len(list(NOTEBOOKS.rglob("*.ipynb")))
    save_picture(visit, "start-page")
    links.first.click()
    visit.wait_for_selector(".jp-NotebookPanel .jp-Cell")
    assert visit.locator(TOASTS).count() == 0
    names = visit.locator(".jp-DirListing-itemText")
    assert {"START.md", "notebooks", "README.md"} <= set(names.all_inner_texts())


@pytest.mark.long
def test_every_notebook_opens_clean(visit: Any) -> None:
    for path in sorted(NOTEBOOKS.rglob("*.ipynb")):
        name = f"notebooks/{path.relative_to(NOTEBOOKS).as_posix()}"
        open_path(visit, name)
        visit.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell")
        assert visit.evaluate(DIRTY) == [], name
        assert visit.evaluate(EMPTY) == 0, name
        errors = visit.locator("[data-mime-type='application/vnd.jupyter.error']")
        assert errors.count() == 0, name
        visit.evaluate("window.jupyterapp.commands.execute('application:close')")
    assert visit.locator(TOASTS).count() == 0
