"""The site in a browser, from `file://`: not wider than the window, both themes, search."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.examples import under_long
from helpers.site import built_site

WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
BACK = "() => getComputedStyle(document.body).backgroundColor"
SHOWN = (
    *("index", "docs/course", "docs/commands", "docs/how-to/publish", "docs/explain/exactly-once"),
    *("notebooks/tools", "notebooks/vorder", "notebooks/learn/04_operate", "docs/sources"),
    *("reference/commands", "reference/api/lake", "reference/promises", "reference/parameters"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


# A page is more likely to be too wide for a narrow window, and to lack a colour in the dark theme.
SCREENS = [(400, "dark"), *under_long((400, "light"), (1440, "dark"), (1440, "light"))]


@pytest.fixture(params=SCREENS, ids=str)
def page(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    width, scheme = request.param
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    page.scheme, page.asked, page.faults = scheme, [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    yield page
    context.close()


def test_pages_fit_and_load_nothing_from_elsewhere(site: Path, page: Any) -> None:
    for name in SHOWN:
        page.goto(f"file://{site}/{name}.html")
        assert page.evaluate(WIDER) <= 0, name
        red, green, blue = map(int, page.evaluate(BACK)[4:-1].split(",")[:3])
        assert (red + green + blue > 600) == (page.scheme == "light"), name
        broken = "() => [...document.images].filter(i => i.complete && !i.naturalWidth).length"
        assert page.evaluate(broken) == 0, name
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
    assert page.faults == []


def test_search_works_from_a_file(site: Path, page: Any) -> None:
    page.goto(f"file://{site}/search.html?q=quarantine")
    page.wait_for_selector("#search-results li a")
    page.wait_for_function("() => document.querySelectorAll('#search-results li').length > 4")
    assert "Measure the lag of a mirror" in page.locator("#search-results").inner_text()
    page.locator("#search-results li a", has_text="Operate a mirror").click()
    page.wait_for_selector("h1:has-text('Operate a mirror')")
    firsts = {"undo": "Undo a bad load", "forget": "Delete personal data",
              "corrupt": "The landing zone"}  # fmt: skip
    for query, title in firsts.items():
        page.goto(f"file://{site}/search.html?q={query}")
        page.wait_for_selector(f"#search-results li:first-child a:has-text('{title}')")
    assert page.faults == []
