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
# The first hit of a search. The last hit opens at a heading.
FIRSTS = {
    "undo": "Undo a bad load",
    "forget": "Delete personal data",
    "corrupt": "A table has stopped",
    "guardrails": "Guardrails by capacity",
    "gdpr": "Delete personal data",
    "erase": "Delete personal data",
    "right to be forgotten": "Delete personal data",
    "materialized view": "Views",
    "SCD": "Keep history in archives and dimensions",
    "SCD type 2": "Keep history in archives and dimensions",
    "exit code": "Commands",
    "exit codes": "Commands",
    "F SKU row limit": "Guardrails by capacity",
    "Direct Lake limits": "Guardrails by capacity",
    "table stopped": "A table has stopped",
    "move to another bucket": "Back up, move or upgrade a lake",
    "vacuum": "Maintain the tables",
    "what changed": "Travel in time",
    "compare two versions": "Travel in time",
}


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


def test_wide_content_and_the_sidebar(site: Path, browser: Any) -> None:
    """At 1024 the table of promises fits; at 1280 code has more room; the sidebar is scrolled."""
    page = browser.new_page(viewport={"width": 1024, "height": 900}, color_scheme="dark")
    page.goto(f"file://{site}/reference/promises.html")
    table = "() => { const t = document.querySelector('.promises table');"
    assert page.evaluate(f"{table} return t.scrollWidth - t.clientWidth; }}") <= 0
    page.goto(f"file://{site}/docs/explain/exactly-once.html")
    shown = "() => getComputedStyle(document.querySelector('.content img')).filter"
    assert "invert" in page.evaluate(shown)
    for width in (1024, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        for name in (*SHOWN, "docs/how-to/database"):
            page.goto(f"file://{site}/{name}.html")
            assert page.evaluate(WIDER) <= 0, (name, width)
    page.goto(f"file://{site}/docs/limits.html")
    assert page.evaluate("() => document.querySelector('.content').clientWidth") > 850
    place = "() => document.querySelector('.sidebar-scroll .current-page > a')"
    box = page.evaluate(f"{place}.getBoundingClientRect().toJSON()")
    assert 0 < box["top"] < 900
    page.close()


def test_search_works_from_a_file(site: Path, page: Any) -> None:
    page.goto(f"file://{site}/search.html?q=quarantine")
    page.wait_for_selector("#search-results li a")
    page.wait_for_selector("#search-results li:has-text('Measure the lag of a mirror')")
    page.locator("#search-results li a", has_text="Operate a mirror").click()
    page.wait_for_selector("h1:has-text('Operate a mirror')")
    for query, title in FIRSTS.items():
        page.goto(f"file://{site}/search.html?q={query}")
        page.wait_for_selector(f"#search-results li:first-child a:has-text('{title}')")
    page.locator("#search-results li:first-child a").click()
    page.wait_for_function("() => location.hash && location.pathname.endsWith('time_travel.html')")
    assert page.faults == []
