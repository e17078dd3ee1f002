"""`./mirrorlake test --changed`: which test files a change can touch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from helpers.project import PROJECT
from helpers.touched import Imports, changed_files

SOURCES = {
    "lib/mirrorlake/__init__.py": "from mirrorlake.lake import Lake\n",
    "lib/mirrorlake/lake.py": (
        "from mirrorlake.names import FOLDER\n"
        "class Lake:\n"
        "    def lint(self):\n"
        "        from mirrorlake.lint.zone import lint_zone\n"
        "        return lint_zone(FOLDER)\n"
        "    def mirror(self):\n"
        "        from mirrorlake.mirror import engine\n"
        "        return engine.cycle()\n"
    ),
    "lib/mirrorlake/names.py": "FOLDER = 'Files'\n",
    "lib/mirrorlake/lint/__init__.py": "",
    "lib/mirrorlake/lint/zone.py": "def lint_zone(folder): return folder\n",
    "lib/mirrorlake/lint/rules.yaml": "rules: []\n",
    "lib/mirrorlake/mirror/__init__.py": "",
    "lib/mirrorlake/mirror/engine.py": (
        "from mirrorlake.mirror.plan import Plan\ndef cycle(): return Plan().carry_out()\n"
    ),
    "lib/mirrorlake/mirror/plan.py": (
        "class Plan:\n    def carry_out(self): return unused\n    def undo(self): return taken()\n"
        "def taken():\n    from mirrorlake.mirror.trash import away\n    return away()\n"
    ),
    "lib/mirrorlake/mirror/trash.py": "def away(): return 0\n",
    "lib/mirrorlake/cli/main.py": (
        "from mirrorlake.cli import zone\nCOMMANDS = (zone,)\ndef main(): pass\n"
    ),
    "lib/mirrorlake/cli/__init__.py": "",
    "lib/mirrorlake/cli/zone.py": (
        "from mirrorlake.lint.zone import lint_zone\n"
        "@app.command()\ndef lint(): return lint_zone('x')\n"
        "@app.command()\ndef status(): return 0\n"
    ),
    "tests/conftest.py": (
        "from mirrorlake import Lake\n"
        "@pytest.fixture\ndef lake(): return Lake()\n"
        "@pytest.fixture\ndef run():\n    from mirrorlake.cli.main import main\n    return main\n"
    ),
    "tests/helpers/rows.py": "def rows(): return []\n",
    "tests/unit/test_lint.py": "def test_it(lake): lake.lint()\n",
    "tests/unit/test_mirror.py": "def test_it(lake): lake.mirror()\n",
    "tests/unit/test_names.py": "from mirrorlake.names import FOLDER\ndef test_it(): FOLDER\n",
    "tests/unit/test_rows.py": "from helpers.rows import rows\ndef test_it(): rows()\n",
    "tests/unit/test_shell.py": "def test_it(run): run('lint')\n",
    "tests/unit/project/test_pages.py": "def test_it(): pass\n",
    "docs/lint.md": "# Rules\n",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for name, text in SOURCES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("changed", "touched"),
    [
        ("lib/mirrorlake/lint/zone.py", ["lint", "shell"]),
        ("lib/mirrorlake/lint/rules.yaml", ["lint", "shell"]),
        ("lib/mirrorlake/mirror/engine.py", ["mirror"]),
        ("lib/mirrorlake/mirror/plan.py", ["mirror"]),
        ("lib/mirrorlake/mirror/trash.py", []),
        ("lib/mirrorlake/mirror/gone.py", ["mirror"]),
        ("lib/mirrorlake/lake.py", ["lint", "mirror"]),
        ("lib/mirrorlake/names.py", ["lint", "names"]),
        ("lib/mirrorlake/cli/zone.py", ["shell"]),
        ("tests/helpers/rows.py", ["rows"]),
        ("tests/unit/test_rows.py", ["rows"]),
        ("docs/lint.md", ["pages"]),
    ],
)
def test_a_change_touches_what_uses_it(project: Path, changed: str, touched: list[str]) -> None:
    found = Imports(project).touched_by([changed])
    assert found is not None
    assert sorted(path.stem for path in found) == [f"test_{name}" for name in touched]


@pytest.mark.parametrize("changed", ["tests/conftest.py", "pyproject.toml"])
def test_some_changes_touch_everything(project: Path, changed: str) -> None:
    assert Imports(project).touched_by(["tests/helpers/rows.py", changed]) is None


def test_nothing_touches_nothing(project: Path) -> None:
    assert Imports(project).touched_by([]) == set()


def test_changes_are_what_git_would_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for name in ("kept", "edited", "removed"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("ignored")
    git("add", ".")
    git("commit", "-m", "first")
    (tmp_path / "edited").write_text("otherwise")
    (tmp_path / "removed").unlink()
    (tmp_path / "new").touch()
    (tmp_path / "ignored").touch()
    assert changed_files(tmp_path) == ["edited", "new", "removed"]


@pytest.mark.long
def test_this_project() -> None:
    """Check a few test files only: all of them would take seconds."""
    imports, tests = Imports(PROJECT), PROJECT / "tests"
    changed = PROJECT / "lib" / "mirrorlake" / "feed" / "net.py"
    for name in ("spark/feed/test_feed_net.py", "spark/feed/test_feed_read.py"):
        assert changed in imports.used_by(tests / name)
    for name in ("landing/test_check.py", "layout/test_vorder_file.py", "landing/test_lint.py"):
        assert changed not in imports.used_by(tests / "unit" / name)
