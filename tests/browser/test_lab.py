"""The explorer, the monitor page and the publish form in JupyterLab."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from helpers.lab import READY
from mirrorlake import Lake
from mirrorlake_lab.pages import html

EVIL = "<img src=x onerror=document.title='hit'>"
TITLES = ("Zone", "Tables", "Versions", "Rows", "Feed", "Files", "Views", "Runs")
QUICK = [(1024, "Dark")]
ALL = list(product((1024, 1440), ("Light", "Dark")))
OVERFLOWS = """() => [...document.querySelectorAll('.jp-OutputArea-output')].filter(
    one => one.scrollWidth > one.clientWidth + 2).map(one => one.scrollWidth - one.clientWidth)"""
SCROLLING = """() => [...document.querySelectorAll('.ml .scroll')].filter(
    one => one.offsetParent && one.scrollWidth > one.clientWidth).map(one => one.innerText)"""
CUT_TABS = """() => [...document.querySelectorAll('.ml-tabs .lm-TabBar-tab')].filter(
    one => one.scrollWidth > one.clientWidth + 1 || [...one.children].some(
    label => label.scrollWidth > label.clientWidth + 1)).map(one => one.innerText)"""
FAINT = """() => [...document.querySelectorAll('.ml td')].slice(0, 50).filter(cell => {
    const light = text => text.match(/[\\d.]+/g).slice(0, 3).reduce((a, b) => a + +b, 0) / 3;
    let back = cell, colour = 'rgba(0, 0, 0, 0)';
    while (back && /, 0\\)$/.test(colour = getComputedStyle(back).backgroundColor))
        back = back.parentElement;
    return Math.abs(light(getComputedStyle(cell).color) - light(colour)) < 90; }).length"""

Look = Callable[..., Any]


EXPLORE = (
    'from mirrorlake import Lake\nfrom mirrorlake_lab import explore\nexplore(Lake.open("lake"))'
)


def open_tab(page: Any, title: str) -> None:
    page.locator(".jupyter-widget-tab .lm-TabBar-tab", has_text=title).first.click()


def choose(page: Any, table: str) -> None:
    page.get_by_label("Table", exact=True).first.select_option(label=table)


def shown_version(page: Any) -> str:
    row = page.locator(".ml:visible tr:has(th:text-is('version'))").first
    return str(row.locator("td").inner_text())


def history_document(lake: Lake) -> dict[str, Any]:
    """Return the document that `history --json` prints for the table."""
    command = [sys.executable, "-m", "mirrorlake.cli", "history", lake.storage.root, "inventory"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(("width", "theme"), QUICK)
def test_pick_a_table_step_and_look_at_every_tab(
    server: Any, look: Look, save_picture: Callable[[Any, str], None], width: int, theme: str
) -> None:
    walk(server, look, save_picture, width, theme)


@pytest.mark.long
@pytest.mark.parametrize(("width", "theme"), [one for one in ALL if one not in QUICK])
def test_the_other_widths_and_themes(
    server: Any, look: Look, save_picture: Callable[[Any, str], None], width: int, theme: str
) -> None:
    walk(server, look, save_picture, width, theme)


def walk(server: Any, look: Look, save: Callable[[Any, str], None], width: int, theme: str) -> None:
    """Choose a table, step by the arrow keys, and open every tab."""
    name = f"explorer-{theme.lower()}-{width}"
    page = look(name, EXPLORE, width=width, theme=theme)
    page.get_by_label("Table", exact=True).wait_for()
    choose(page, "inventory")
    open_tab(page, "Versions")
    document = history_document(server.lake)
    newest = document["rows"][0]["version"]
    page.wait_for_function(
        "want => [...document.querySelectorAll('.ml tr')].some(row => row.offsetParent &&"
        " row.innerText.replace(/\\s+/g, ' ').trim() === 'version ' + want)",
        arg=str(newest),
    )
    page.locator(".noUi-handle:visible").first.focus()
    page.keyboard.press("ArrowLeft")
    before = document["rows"][1]
    page.wait_for_function(
        "want => [...document.querySelectorAll('.ml tr')].some(row => row.offsetParent &&"
        " row.innerText.replace(/\\s+/g, ' ').trim() === 'version ' + want)",
        arg=str(before["version"]),
    )
    text = page.locator(".ml:visible", has_text="operation").first.inner_text()
    assert before["operation"] in text
    assert before["timestamp"][:19].replace("T", " ") in text
    assert page.evaluate(CUT_TABS) == []
    for title in TITLES:
        open_tab(page, title)
        page.wait_for_timeout(300)  # the kernel gets the click
        page.wait_for_function(READY)
        assert page.evaluate(OVERFLOWS) == [], title
        assert title not in ("Zone", "Files") or page.evaluate(SCROLLING) == []
        assert page.evaluate(FAINT) == 0, title
        assert page.locator(".ml .dot.bad:visible", has_text="Error").count() == 0, title
        if title in ("Versions", "Files", "Zone"):
            save(page, f"{title.lower()}-{theme.lower()}-{width}")
    assert page.locator(".ml img").count() == 0
    assert page.locator("svg[role=img]:not([aria-label])").count() == 0
    assert page.locator(".jp-Notification-List, .Toastify__toast").count() == 0  # no news


def test_a_hostile_name_is_text_in_picker_page_and_form(look: Look, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.publisher(f"`{EVIL}`", keys=["id"]).upsert([{"id": 1, EVIL: EVIL}])
    source = (
        "from IPython.display import display\nfrom mirrorlake import Lake\n"
        "from mirrorlake_lab import explore, monitor, publish_form\n"
        f"lake = Lake({str(lake.storage.root)!r})\nexplorer = explore(lake)\n"
        "explorer.open('Zone').read_rows()\n"
        f"form = publish_form(lake, {EVIL!r})\n"
        "display(explorer, monitor(lake), form)"
    )
    page = look("hostile", source)
    page.locator("td", has_text=EVIL).first.wait_for()
    form = page.get_by_label("Table", exact=True).and_(page.locator("input"))  # not the picker
    form.fill(EVIL)
    form.press("Enter")
    page.get_by_role("button", name="Check", exact=True).click()
    page.locator("[role=status]", has_text="needs a file").wait_for()
    assert page.locator(".jp-OutputArea img[src=x]").count() == 0
    assert page.title() != "hit"
    assert html.text(EVIL) not in page.locator(".ml").first.inner_text()  # escaped once, not twice


def test_the_form_publishes_a_chosen_file(look: Look, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    files = {"bad.csv": "id,n\n1,2\n,3\n", "good.csv": "id,n\n1,2\n2,3\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    source = "from mirrorlake import Lake\nfrom mirrorlake_lab import publish_form\n"
    source += f"publish_form(Lake({str(lake.storage.root)!r}), 'stock')"
    page = look("form", source)
    upload = page.get_by_role("button", name="Choose a file")
    for name, said in (("bad.csv", "row 2"), ("good.csv", "2 rows would be published")):
        with page.expect_file_chooser() as chosen:
            upload.click()
        chosen.value.set_files(tmp_path / name)
        page.locator("caption", has_text=name).wait_for()
        page.get_by_label("Keys", exact=True).select_option("id")
        page.get_by_role("button", name="Check", exact=True).click()
        page.locator("[role=status]", has_text=said).wait_for()
    assert not list(tmp_path.glob("lake/Files/LandingZone/stock/*.parquet"))
    page.get_by_role("button", name="Publish", exact=True).click()
    page.locator("[role=status]", has_text="Published:").wait_for()  # the check says "published"
    assert len(list(tmp_path.glob("lake/Files/LandingZone/stock/0*.parquet"))) == 1
