"""The pages without scripts in a browser: both themes, and not wider than the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.old_lake import unpack
from mirrorlake import Lake
from mirrorlake_lab import explore, monitor

WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
BACK = "() => getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """The page shows a path below the home folder, as a user would type it."""
    home = tmp_path_factory.mktemp("pages")
    root = home / "lakes" / "shop"
    root.parent.mkdir()
    unpack(home).rename(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORLAKE_HOME", str(home))
        yield Lake(root)


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    size = {"width": 1024, "height": 760}
    context = browser.new_context(viewport=size, color_scheme=request.param)
    page = context.new_page()
    page.scheme = request.param
    yield page
    context.close()


def test_the_monitor_page_fits(
    lake: Lake, page: Any, tmp_path: Path, save_picture: Callable[[Any, str], None]
) -> None:
    shown = monitor(lake)
    shown.to_html(tmp_path / "monitor.html")
    page.goto(f"file://{tmp_path}/monitor.html")
    assert page.evaluate(WIDER) <= 0
    assert page.evaluate(BACK) == ("rgb(255, 255, 255)" if page.scheme == "light" else
                                   "rgb(22, 25, 29)")  # fmt: skip
    first = shown.health.tables[0]
    row = page.locator("tr", has=page.locator(f"td:text-is('{first.status.full_name}')")).first
    assert first.status.problem in row.inner_text()
    assert first.status.fix in row.inner_text()
    assert page.locator("h1 + p").inner_text().startswith("lakes/shop at ")
    save_picture(page, f"monitor-{page.scheme}")


def test_the_static_explorer_fits(lake: Lake, page: Any, tmp_path: Path) -> None:
    explore(lake).to_html(tmp_path / "lake.html")
    page.goto(f"file://{tmp_path}/lake.html")
    for part in page.locator("details > summary").all()[:3]:
        part.click()
    assert page.evaluate(WIDER) <= 0
    assert page.locator("script").count() == 0
