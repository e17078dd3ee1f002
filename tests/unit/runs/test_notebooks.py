"""Rules for all notebooks, checked without executing them."""

from __future__ import annotations

import ast
import base64
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from papermill.inspection import inspect_notebook

from helpers.project import NOTEBOOKS, PARAMETERS, PROJECT
from mirrorlake_runs import load_plan

TOOLS = sorted(NOTEBOOKS.glob("*.ipynb"))
LESSONS = sorted((NOTEBOOKS / "learn").glob("*.ipynb"))
PATHS = [*TOOLS, *LESSONS]
PLANS = sorted((PARAMETERS / "plans").glob("*.yaml"))
UNSTABLE = {
    "a path": re.compile(r"(?<![\w:/])/(?:tmp|home|root|Users|var|opt)/"),
    "an id": re.compile(r"0x[0-9a-f]{6,}|\b[0-9a-f]{32}\b|[0-9a-f]{8}-[0-9a-f]{4}-"),
    "noise of the JVM": re.compile(r"\bWARN\b|\bERROR\b|log4j|SLF4J|Picked up"),
}
CHANGES = re.compile(
    r"rmtree|unlink|clear|delete_folder|\.delete\(|\.write\(|\.save\(|open_writer|\.mirror\("
    r"|\.publisher\(|publish_|\.upsert\(|\.insert\(|\.archive\(|\.apply_feed\(|create_table\("
    r"|\.create\(|\.optimize\(|\.vacuum\(|\.set\(|\b(UPDATE|MERGE|DELETE FROM|INSERT INTO)\b"
)
OURS = {"mirrorlake", "mirrorlake_lab", "mirrorlake_runs", "mirrorlake_sources"}
MAY_IMPORT = {*OURS, "pandas", "matplotlib"}
TAGS = {"parameters", "nbval-ignore-output", "nbval-raises-exception", "nbval-skip"} | {
    "skip-execution",
    "solution",
}


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def notebook(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def test_there_are_notebooks() -> None:
    assert LESSONS
    numbers = [path.stem[:2] for path in LESSONS]
    assert all(re.fullmatch(r"\d\d_\w+", path.stem) for path in LESSONS)
    assert all(re.fullmatch(r"[a-z_]+", path.stem) for path in TOOLS)
    assert len(set(numbers)) == len(numbers)


def test_parameters_equal_their_file(path: Path, notebook: Any) -> None:
    values = yaml.safe_load(
        (PARAMETERS / path.relative_to(NOTEBOOKS).with_suffix(".yaml")).read_text(encoding="utf-8")
    )
    found = inspect_notebook(str(path))
    assert list(found) == list(values)
    assert {name: ast.literal_eval(item["default"]) for name, item in found.items()} == values
    kinds = {name: type(value).__name__ for name, value in values.items()}
    assert {name: item["inferred_type_name"] for name, item in found.items()} == kinds
    assert all(item["help"] for item in found.values())


def test_cells_are_short_and_define_nothing(notebook: Any) -> None:
    for cell in code_cells(notebook):
        assert len(cell.source.splitlines()) <= 15, cell.id
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        assert not any(isinstance(node, kinds) for node in ast.walk(ast.parse(cell.source)))


def test_it_opens_with_title_and_subtitle(notebook: Any) -> None:
    lines = notebook.cells[0].source.splitlines()
    assert lines[0].startswith("# ")
    assert lines[2].startswith("> ")
    titles = [
        line
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if re.match("# ", line)
    ]
    assert len(titles) == 1


def test_outputs_are_committed_and_hold_nothing_of_the_machine(notebook: Any) -> None:
    assert [cell.execution_count for cell in code_cells(notebook)] == [
        number for number, _ in enumerate(code_cells(notebook), 1)
    ]
    for output in outputs(notebook):
        assert output.output_type != "error"
        assert output.get("name") != "stderr"
        shown = {kind: v for kind, v in output.get("data", {}).items() if kind != "image/png"}
        text = output.get("text", "") + json.dumps(shown)
        for what, pattern in UNSTABLE.items():
            assert not pattern.search(text), f"{what}: {text[:300]}"


def test_metadata_are_clean(notebook: Any) -> None:
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    # Lab calls a notebook modified when its kernel has other language_info than the file.
    assert {"name", "version", "mimetype", "codemirror_mode"} <= set(
        notebook.metadata.language_info
    )
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags"}
        assert set(cell.metadata.get("tags", [])) <= TAGS
    for output in outputs(notebook):
        for kind, facts in output.get("metadata", {}).items():
            assert (kind, set(facts)) == ("image/png", {"alt", "width", "height"})


def test_pictures_have_words_and_twice_the_pixels(notebook: Any) -> None:
    pictures = [one for one in outputs(notebook) if "image/png" in one.get("data", {})]
    for one in pictures:
        facts = one.metadata["image/png"]
        assert len(facts["alt"]) > 20
        header = base64.b64decode(one.data["image/png"])[16:24]
        assert [int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")] == [
            pytest.approx(2 * facts["width"], abs=2),
            pytest.approx(2 * facts["height"], abs=2),
        ]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_what_changes_a_lake_opens_it_as_a_sample_first(notebook: Any) -> None:
    """Only `open_sample` may clear, fill or open a lake before it; reading needs no guard."""
    text = "\n".join(cell.source for cell in code_cells(notebook))
    before, guard, after = text.partition("open_sample(")
    assert not CHANGES.search(before)
    assert not re.search(r"\bLake\(", before) or not guard
    if guard:
        assert re.match(r"lake = open_sample\(", working_cells(notebook)[0])
        assert after.count("seal_sample(lake)") == 1
        assert not CHANGES.search(after.partition("seal_sample(lake)")[2])


@pytest.mark.parametrize("path", TOOLS, ids=lambda path: path.stem)
def test_tools_serve_any_lake(path: Path, notebook: Any) -> None:
    """Tools open the lake first, import little, make no assertions, and record results."""
    assert len(notebook.cells) <= 25
    assert len(notebook.cells[0].source.splitlines()) == 3
    nodes = [node for cell in code_cells(notebook) for node in ast.walk(ast.parse(cell.source))]
    assert not any(isinstance(node, ast.Assert) for node in nodes)
    modules = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    modules += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in modules} <= MAY_IMPORT
    assert {name for name in modules if name.startswith("mirrorlake")} <= OURS
    working = working_cells(notebook)
    opens = "make_sample" if path.stem == "sample" else "Lake.open"
    assert working[0].startswith(f"lake = {opens}(root")
    assert "record(" in working[-1]


def test_tools_accept_lists_of_names() -> None:
    """The library splits a text at its commas; a notebook that does so accepts no list."""
    assert not [path.name for path in TOOLS if ".split(" in path.read_text(encoding="utf-8")]


def test_the_docs_list_the_tools() -> None:
    page = (PROJECT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert [path.stem for path in TOOLS if f"| `{path.stem}` |" not in page] == []


def working_cells(notebook: Any) -> list[str]:
    """Return the code cells without imports, parameters, and a lesson's picture of the system."""
    sources = [cell.source for cell in code_cells(notebook)]
    return [one for one in sources if not is_setup(one) and "plot_system(" not in one]


def is_setup(source: str) -> bool:
    """Return whether a cell has only parameters or imports."""
    kinds = (ast.Import, ast.ImportFrom, ast.AnnAssign)
    return all(isinstance(node, kinds) for node in ast.parse(source).body)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_plans_name_notebooks_and_their_parameters(path: Path) -> None:
    plan = load_plan(path)
    assert plan.name == path.stem
    assert plan.steps
