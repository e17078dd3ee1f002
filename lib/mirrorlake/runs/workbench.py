"""The folder that `lab` opens: copies of the notebooks to change at will, and a start page.

What somebody changed there is never overwritten: only `reset` makes the copies new, and it keeps
the changed ones beside them. So no tracked file of the project changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import shutil
from datetime import datetime, timezone
from pathlib import Path

from jupyter_client.kernelspec import NoSuchKernel, get_kernel_spec

from mirrorlake.course.copies import student_copy
from mirrorlake.errors import UsageError
from mirrorlake.notices import VARIABLE
from mirrorlake.paths import NOTEBOOKS, PROJECT, cache, home
from mirrorlake.runs.lab_extension import Card, write_extension
from mirrorlake.runs.notebook_files import first_words, nbformat
from mirrorlake.runs.plan import notebook_names
from mirrorlake.runs.store import list_runs, write_whole

START = "START.md"
MARK = ".mirrorlake-lab.json"
KEPT = "kept"
LAB_ENVIRONMENT = {VARIABLE: "1"}  # of the server and its kernels: Spark says how far it is
# What stands above each part of the start page.
_SAID: dict[str, tuple[str, ...]] = {
    "Lessons": (),
    "Tools": (
        "They work on any lake; their `root` is the sample lake until you name yours.",
        "[sample](notebooks/sample.ipynb), or `./mirrorlake sample lakes/sample`, makes it.",
        "To look at a lake, run this in a notebook:",
        "",
        "```python",
        "from mirrorlake import open_lake",
        'open_lake("lakes/sample").explore()',
        "```",
        "",
    ),
}
# Lab's own settings: no question about news, pages shown as pages, whole names in the browser.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": False,
    },
    "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}},
    "@jupyterlab/filebrowser-extension:browser": {
        "showLastModifiedColumn": False,
        "showFileSizeColumn": False,
    },
}


def lab_folder() -> Path:
    """Where the copies are: `lab/` of the project, or of MIRRORLAKE_HOME."""
    return home() / "lab"


def make_workbench(folder: Path, *, reset: bool = False) -> int:
    """Brings the copies into a folder; those that nobody changed follow the originals.

    Args:
        folder: absent, empty, or made by an earlier call.
        reset: make changed copies new, too; what they were is kept under `kept/`.

    Returns:
        How many changed copies there are, or were.

    Raises:
        UsageError: there are no notebooks here, or the folder holds something else.
    """
    if not NOTEBOOKS.is_dir():
        raise UsageError("There are no notebooks here.", hint="they lie in the project's source.")
    mark = folder / MARK
    if folder.is_dir() and any(folder.iterdir()) and not mark.is_file():
        raise UsageError(f"{folder} holds something else.", hint="name another --folder.")
    known = _read_mark(mark)
    folder.mkdir(parents=True, exist_ok=True)
    changed = 0
    made: dict[str, str] = {}
    stamp = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    for source in _sources():
        name = _name_of(source)
        target = folder / name
        fresh = copy_for_lab(source)
        own = target.is_file() and known.get(name) != _print_of(target.read_bytes())
        if own and target.read_bytes() != fresh:
            changed += 1
            if not reset:
                made[name] = known.get(name, "")
                continue
            place = folder / KEPT / stamp / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(target, place)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(fresh)
        made[name] = _print_of(fresh)
    (folder / START).write_text(start_page(), encoding="utf-8")
    mark.write_text(json.dumps(made, indent=1), encoding="utf-8")
    return changed


def copy_for_lab(source: Path) -> bytes:
    """A file as its copy has it: lessons are blank, and notebooks name this machine's kernel.

    Otherwise Lab would call each notebook modified as soon as its kernel has started.
    """
    lesson = source.parent == NOTEBOOKS / "learn" and source.suffix == ".ipynb"
    data = student_copy(source) if lesson else source.read_bytes()
    if source.suffix != ".ipynb":
        return data
    notebook = json.loads(data)
    with contextlib.suppress(NoSuchKernel):
        spec = get_kernel_spec("python3")
        notebook["metadata"]["kernelspec"]["display_name"] = spec.display_name
    notebook["metadata"]["language_info"]["version"] = platform.python_version()
    return f"{json.dumps(notebook, indent=1, ensure_ascii=False)}\n".encode()


def write_settings() -> Path:
    """Lab's settings, as a folder of the cache to name as its `app_settings_dir`."""
    folder = cache() / "lab-settings"
    write_whole(folder / "overrides.json", json.dumps(SETTINGS, indent=1))
    return folder


def lab_command(python: str, folder: Path, *more: str) -> list[str]:
    """The command that opens JupyterLab on a folder, at its start page."""
    return [
        *(python, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"),
        f"--LabApp.app_settings_dir={write_settings()}",
        f"--LabApp.extra_labextensions_path={write_extension(_cards())}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.news_url=None",
        f"--LabApp.default_url=/lab/tree/{START}",
        *more,
    ]


def start_page() -> str:
    """What is here, and how long each notebook took when it ran last on this machine."""
    seconds = _seconds()
    lines = [
        "# mirrorlake",
        "",
        "> An open lakehouse in notebooks. These are copies: change what you like.",
        "",
        "[Read me](README.md) · [Looking at a lake](docs/explore.md) · [Landing zone]"
        "(docs/landing-zone.md) · [Scheduling](docs/schedule.md)",
        "",
        "Begin with [lesson 01](notebooks/learn/01_publish.ipynb): Shift+Enter runs a cell. [The"
        " course](docs/course.md) lists all lessons. Their tasks are blank here: write the answer"
        " into the cell, and the next cell checks it. `./mirrorlake course --show 02-3` shows a"
        " solution.",
    ]
    for title, paths in _parts().items():
        lines += [
            "",
            f"## {title}",
            "",
            *_SAID[title],
            "| notebook | what it is | took last |",
            "|---|---|---|",
        ]
        for path in paths:
            name, said = _first_lines(path)
            took = seconds.get(path.stem)
            shown = "not run yet" if took is None else f"{took:,.0f} s"
            lines.append(f"| [{path.stem}]({_name_of(path)}) | {name}: {said} | {shown} |")
    lines += [
        "",
        "`./mirrorlake lab --reset` makes all copies new; changed ones go to `kept/`.",
        "",
    ]
    return "\n".join([*lines, ""])


def _parts() -> dict[str, list[Path]]:
    return {
        "Lessons": sorted(NOTEBOOKS.glob("learn/*.ipynb")),
        "Tools": sorted(NOTEBOOKS.glob("*.ipynb")),
    }


def _cards() -> list[Card]:
    """A card for each notebook: lessons with their numbers, in their order."""
    found = []
    for category, paths in _parts().items():
        for path in paths:
            name, said = _first_lines(path)
            number = path.stem.partition("_")[0]
            label = f"{int(number)}. {name}" if number.isdigit() else name
            found.append(Card(_name_of(path), label, said, category))
    return found


def _sources() -> list[Path]:
    found = [NOTEBOOKS / f"{name}.ipynb" for name in notebook_names()]
    for ending in ("md", "png"):  # pages, and the pictures that they show
        found += (PROJECT / "docs").rglob(f"*.{ending}")
    readme = PROJECT / "README.md"
    return sorted([*found, *([readme] if readme.is_file() else [])])


def _name_of(source: Path) -> str:
    if source.is_relative_to(NOTEBOOKS):
        return (Path("notebooks") / source.relative_to(NOTEBOOKS)).as_posix()
    return source.relative_to(PROJECT).as_posix()


def _first_lines(path: Path) -> tuple[str, str]:
    """A notebook's title and what stands below it, for a table."""
    title, said = first_words(nbformat.read(path, as_version=4))  # type: ignore[no-untyped-call]
    return title, said.replace("|", "\\|")


def _seconds() -> dict[str, float]:
    """How long each notebook took in its newest run that was done."""
    found: dict[str, float] = {}
    for record in list_runs():
        for step in record.document.get("steps") or ():
            took = step.get("seconds")
            if step.get("status") == "done" and isinstance(took, (int, float)):
                found.setdefault(Path(str(step.get("notebook"))).stem, float(took))
    return found


def _read_mark(mark: Path) -> dict[str, str]:
    try:
        found = json.loads(mark.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _print_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
