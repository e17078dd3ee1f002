"""The built site: works offline, is complete, and every link, anchor and picture exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import mirrorlake
from helpers.project import NOTEBOOKS, PROJECT
from helpers.site import Page, built_site, target_of
from mirrorlake import errors
from mirrorlake.cli import main as cli
from mirrorlake.errors import UsageError
from mirrorlake.landing import lint_rules
from mirrorlake.layout import guardrails
from mirrorlake_docs import code_facts
from mirrorlake_lab import build_site, lessons
from mirrorlake_runs import notebook_names

OUTSIDE = re.compile(r"(?:https?:)?//|data:text")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_link_and_anchor_leads_somewhere(pages: dict[Path, Page]) -> None:
    dead = []
    for page in pages.values():
        for link in page.links:
            target = target_of(page, link)
            if target is None:
                continue
            path, anchor = target
            if not path.is_file() or (anchor and path in pages and anchor not in pages[path].ids):
                dead.append((page.path.name, link))
    assert dead == []
    assert sum(len(page.links) for page in pages.values()) > 1000


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for page in pages.values():
        for load in page.loads:
            assert not OUTSIDE.match(load), (page.path.name, load[:80])
            target = target_of(page, load)
            assert load.startswith("data:image/") or (target and target[0].is_file()), load[:80]
    for sheet in site.rglob("*.css"):
        for url in re.findall(r"url\(([^)]*)\)", sheet.read_text(encoding="utf-8")):
            assert not OUTSIDE.match(url.strip("'\"")), (sheet.name, url)
        assert "@import" not in sheet.read_text(encoding="utf-8")


def test_every_picture_has_a_text(pages: dict[Path, Page]) -> None:
    assert [(p.path.name, src) for p in pages.values() for src in p.without_alt] == []


def test_every_notebook_is_a_page_with_its_outputs(site: Path, pages: dict[Path, Page]) -> None:
    for name in notebook_names():
        page = pages[(site / "notebooks" / f"{name}.html").resolve()]
        assert len(page.text) > 500
    learn = pages[(site / "notebooks" / "learn" / "02_mirror.html").resolve()]
    assert "all 19 columns equal" in learn.text  # the output of the last cell
    assert any("_images" in load for load in learn.loads)


def test_the_tools_page_shows_their_pictures(site: Path, pages: dict[Path, Page]) -> None:
    page = pages[(site / "notebooks" / "tools.html").resolve()]
    shown = {Path(load).stem for load in page.loads if "_images/" in load}
    drawn = {
        path.stem for path in NOTEBOOKS.glob("*.ipynb") if '"image/png": "' in path.read_text()
    }
    assert len(drawn) > 8
    assert drawn <= shown


def test_the_first_page_leads_to_all_kinds_of_pages(site: Path, pages: dict[Path, Page]) -> None:
    page = pages[(site / "index.html").resolve()]
    shown = page.path.read_text(encoding="utf-8").partition("<article")[2]
    names = [f"docs/how-to/{path.stem}" for path in (PROJECT / "docs" / "how-to").glob("*.md")]
    kinds = ("parameters", "errors", "messages", "api/index", "promises")
    names += [f"reference/{name}" for name in kinds]
    names += ["docs/start", "docs/course", "docs/notebooks", "docs/commands", "docs/limits"]
    assert [name for name in names if f'href="{name}.html"' not in shown] == []
    assert "02 Mirror the zone" in page.text  # the table of contents has the numbers of lessons


def test_every_doc_is_a_page(site: Path) -> None:
    for path in (PROJECT / "docs").rglob("*.md"):
        name = path.relative_to(PROJECT / "docs").with_suffix(".html")
        assert (site / "docs" / name).is_file() or name == Path("index.html"), name


def test_the_api_has_every_public_name(site: Path, pages: dict[Path, Page]) -> None:
    folder = site / "reference" / "api"
    ids = set().union(*(pages[path.resolve()].ids for path in folder.glob("*.html")))
    names = {anchor.rpartition(".")[2] for anchor in ids}
    assert set(mirrorlake.__all__) - {"errors", "__version__"} <= names
    assert {"mirrorlake.lake.Lake.mirror", "mirrorlake.feed.changes.Changes.net"} <= ids


def test_the_commands_are_the_programs_own_help() -> None:
    text = code_facts.commands_page(cli.command())
    for name, command in cli.command().commands.items():
        verbs = getattr(command, "commands", None)
        for one in [f"{name} {verb}" for verb in verbs] if verbs else [name]:
            assert f"## `{one}`\n" in text
    assert "`--marker <insert\\|update\\|delete\\|upsert>`" in text


def test_every_parameter_error_rule_and_promise_is_there(
    site: Path, pages: dict[Path, Page]
) -> None:
    parameters = code_facts.parameters_page()
    for name in notebook_names():
        values = yaml.safe_load(
            (PROJECT / "parameters" / f"{name}.yaml").read_text(encoding="utf-8")
        )
        part = parameters.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \|", part, re.M) == list(values), name
    named = pages[(site / "reference" / "errors.html").resolve()].text
    kinds = [name for name, kind in vars(errors).items() if isinstance(kind, type)]
    assert [name for name in kinds if name not in named] == []
    assert set(lint_rules.RULES) <= pages[(site / "docs" / "lint.html").resolve()].ids | {
        re.sub(r"-(error|warning|information)$", "", anchor)
        for anchor in pages[(site / "docs" / "lint.html").resolve()].ids
    }


def test_every_promise_has_a_test_that_holds_it() -> None:
    rows = [
        line for line in code_facts.promises_page().splitlines() if re.match(r"\| \S+-\d+ ", line)
    ]
    known = yaml.safe_load((PROJECT / "tests" / "promises.yaml").read_text(encoding="utf-8"))
    assert len(rows) == len(known)
    assert [row for row in rows if ".py::test_" not in row] == []


def test_a_folder_with_something_else_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="contains other files"):
        build_site(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_guardrails_of_each_capacity_are_a_page(site: Path, pages: dict[Path, Page]) -> None:
    text = pages[(site / "reference" / "guardrails.html").resolve()].text
    for sku in guardrails.skus().values():
        assert sku.name in text
        assert f"{sku.rows:,}" in text


def test_solutions_are_folded(site: Path) -> None:
    for lesson in lessons().values():
        (path,) = (NOTEBOOKS / "learn").glob(f"{lesson.number}_*.ipynb")
        text = (site / "notebooks" / "learn" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert text.count("<details") == 2 * len(lesson.tasks), (
            path.stem
        )  # and the output of the check
