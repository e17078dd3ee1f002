"""The folder that Lab opens: its copies follow their originals until somebody changes them."""

from __future__ import annotations

import json
import platform
import re
import shutil
from pathlib import Path

import pytest

from helpers.project import NOTEBOOKS, PROJECT
from mirrorlake.errors import UsageError
from mirrorlake_lab import make_course, workbench


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MIRRORLAKE_CACHE", str(tmp_path / "cache"))


def test_changed_copies_stay_until_they_are_reset(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    assert workbench.make_workbench(folder) == 0
    copies = {path.relative_to(folder / "notebooks") for path in folder.rglob("*.ipynb")}
    assert copies == {path.relative_to(NOTEBOOKS) for path in NOTEBOOKS.rglob("*.ipynb")}
    changed, old = folder / "notebooks" / "query.ipynb", folder / "notebooks" / "publish.ipynb"
    changed.write_text("{}", encoding="utf-8")
    (folder / "mine.ipynb").write_text("{}", encoding="utf-8")
    # An unchanged copy of an older original.
    mark = folder / ".mirrorlake-lab.json"
    prints = json.loads(mark.read_text(encoding="utf-8"))
    old.write_bytes(changed.read_bytes())
    prints["notebooks/publish.ipynb"] = (
        "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    )
    mark.write_text(json.dumps(prints), encoding="utf-8")
    assert workbench.make_workbench(folder) == 1
    assert changed.read_text(encoding="utf-8") == "{}"
    assert old.read_bytes() == workbench.copy_for_lab(NOTEBOOKS / "publish.ipynb")
    assert workbench.make_workbench(folder) == 1
    assert workbench.make_workbench(folder, reset=True) == 1
    assert changed.read_bytes() == workbench.copy_for_lab(NOTEBOOKS / "query.ipynb")
    (kept,) = (folder / workbench.KEPT).rglob("query.ipynb")
    assert kept.read_text(encoding="utf-8") == "{}"
    assert (folder / "mine.ipynb").is_file()
    assert workbench.make_workbench(folder) == 0


def test_pages_have_their_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    workbench.make_workbench(folder)
    shown = 0
    for page in [folder / "README.md", *(folder / "docs").rglob("*.md")]:
        for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / name).is_file(), (page, name)
            shown += 1
    assert shown > 3


def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="contains other files"):
        workbench.make_workbench(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_course_is_opened_as_it_is(tmp_path: Path) -> None:
    folder = make_course(tmp_path / "class").folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert workbench.make_workbench(folder) == 0
    with pytest.raises(UsageError, match="copies of the course"):
        workbench.make_workbench(folder, reset=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert folder / workbench.START in before  # Lab's first page


def test_lessons_that_nbgrader_has_released_are_opened_as_they_are(tmp_path: Path) -> None:
    """It copies all files of the folder of the lessons."""
    source = make_course(tmp_path / "class", solutions=True).notebooks[0].parent
    released = tmp_path / "released"
    shutil.copytree(source, released)
    before = sorted(released.rglob("*"))
    assert workbench.make_workbench(released) == 0
    assert sorted(released.rglob("*")) == before
    assert released / workbench.START in before


def test_the_start_page_leads_to_all_there_is(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    workbench.make_workbench(folder)
    page = (folder / workbench.START).read_text(encoding="utf-8")
    told = [line.split(" | ")[1] for line in page.splitlines() if line.startswith("| [")]
    assert [said for said in told if not said.endswith(".")] == []  # full sentences
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert all((folder / link).is_file() for link in links)
    notebooks = {path.relative_to(folder).as_posix() for path in folder.rglob("*.ipynb")}
    assert notebooks <= set(links)
    assert "README.md" in links
    assert "| – |" in page
    assert page.index("## Your own lake") < page.index("## Lessons")


def test_it_says_how_long_a_notebook_took_last(tmp_path: Path) -> None:
    record = {
        "run": "r1", "plan": "p", "status": "done", "started": "2026-01-01T00:00:00+00:00",
        "folder": "x", "steps": [{"notebook": "query", "status": "done", "seconds": 41.7}],
    }  # fmt: skip
    place = tmp_path / "home" / "runs" / "r1"
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps(record), encoding="utf-8")
    workbench.make_workbench(tmp_path / "lab")
    page = (tmp_path / "lab" / workbench.START).read_text(encoding="utf-8")
    assert "| 42 s |" in page


def test_lab_asks_nobody_about_news(tmp_path: Path) -> None:
    settings = json.loads(
        (workbench.write_settings() / "overrides.json").read_text(encoding="utf-8")
    )
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    command = workbench.lab_command("python", tmp_path, "--no-browser")
    assert f"--LabApp.app_settings_dir={tmp_path / 'cache' / 'lab-settings'}" in command
    assert "--LabApp.news_url=None" in command
    assert command[-1] == "--no-browser"


def test_no_copy_is_under_version_control() -> None:
    assert "/lab/\n" in (PROJECT / ".gitignore").read_text(encoding="utf-8")


def test_a_copy_names_this_machines_kernel_and_is_the_same_else() -> None:
    """Lab then has nothing to write into the notebook when its kernel has started."""
    original = json.loads((NOTEBOOKS / "query.ipynb").read_text(encoding="utf-8"))
    copy = json.loads(workbench.copy_for_lab(NOTEBOOKS / "query.ipynb"))
    assert copy["metadata"]["language_info"]["version"] == platform.python_version()
    original["metadata"] = copy["metadata"]
    assert copy == original
    assert workbench.copy_for_lab(PROJECT / "README.md") == (PROJECT / "README.md").read_bytes()
