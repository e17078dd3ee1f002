"""The start page of `lab`, its links, and all notebooks, which open without a problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers.lab import READY
from helpers.project import NOTEBOOKS

TOASTS = ".Toastify__toast"
OPENED = """name => { const found = [...window.jupyterapp.shell.widgets('main')].find(
    one => one.context?.path === name); return Boolean(found?.context?.isReady); }"""
DIRTY = """() => [...window.jupyterapp.shell.widgets('main')]
    .filter(one => one.context?.model?.dirty).map(one => one.context.path)"""
# Images that are broken, have no alternative text, or touch their edge.
TROUBLE = """() => {
    const panel = document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden)');
    return [...panel.querySelectorAll('.jp-OutputArea img')].flatMap(one => {
        if (!one.naturalWidth) return ['broken'];
        if (!one.alt) return ['no words'];
        const canvas = document.createElement('canvas');
        [canvas.width, canvas.height] = [one.naturalWidth, one.naturalHeight];
        const drawn = canvas.getContext('2d');
        drawn.drawImage(one, 0, 0);
        const [w, h] = [canvas.width, canvas.height];
        const sides = [[0, 0, w, 1], [0, h - 1, w, 1], [0, 0, 1, h], [w - 1, 0, 1, h]];
        const touched = sides.some(side => drawn.getImageData(...side).data.some(x => x < 255));
        return touched ? [one.alt + ' touches its edge'] : [];
    });
}"""
LOADED = """() => [...document.querySelectorAll('.jp-OutputArea img')].every(one => one.complete)"""
WITHIN = {"notebooks": "file_diagnostics.ipynb", "learn": "12_partitioning_policy.ipynb"}
CUT = """() => [...document.querySelectorAll('.jp-DirListing-itemText')]
    .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText)"""


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
    for folder in ("notebooks", "learn"):
        visit.locator(".jp-DirListing-item", has_text=folder).dblclick()
        visit.locator(".jp-DirListing-item", has_text=WITHIN[folder]).wait_for()
        assert visit.evaluate(CUT) == []  # names are not truncated


@pytest.mark.long
def test_every_notebook_opens_clean(visit: Any, server: Any) -> None:
    errors = visit.locator("[data-mime-type='application/vnd.jupyter.error']")
    pictures = visit.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea img")
    found: dict[str, Any] = {}
    for path in sorted(NOTEBOOKS.rglob("*.ipynb")):
        name = f"notebooks/{path.relative_to(NOTEBOOKS).as_posix()}"
        open_path(visit, name)
        visit.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell")
        visit.wait_for_function(READY)  # Lab writes the kernel into a notebook when it has started
        copy = (server.folder / name).read_text(encoding="utf-8")
        assert pictures.count() == copy.count('"image/png": "'), name
        visit.wait_for_function(LOADED)
        trouble = [
            *visit.evaluate(TROUBLE),
            *(f"{one} is modified" for one in visit.evaluate(DIRTY)),
        ]
        if trouble or errors.count():
            found[name] = [*trouble, f"{errors.count()} errors"]
        visit.evaluate("window.jupyterapp.commands.execute('application:close')")
    assert found == {}
    assert visit.locator(TOASTS).count() == 0
