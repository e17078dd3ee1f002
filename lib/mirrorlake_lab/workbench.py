"""The folder that the command `lab` opens: copies of the notebooks, a start page, Lab's extension.

The project's own notebooks are never edited. A changed copy is never overwritten, except by
`reset`, which keeps the changed one under `kept/`.

The extension adds cards to the launcher, alternative texts to charts, and Spark's progress. It is
one script, `lab_extension.js`, which Lab loads without a build or an installation.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import shutil
from datetime import datetime, timezone
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, select_autoescape
from jupyter_client.kernelspec import NoSuchKernel, get_kernel_spec

from mirrorlake.errors import UsageError
from mirrorlake.names import fingerprint
from mirrorlake.notices import VARIABLE
from mirrorlake.storage.paths import NOTEBOOKS, PROJECT, cache, home
from mirrorlake_lab.course.lessons import MARK as COURSE_MARK
from mirrorlake_lab.course.lessons import START, student_copy
from mirrorlake_runs.notebook_files import first_words, nbformat
from mirrorlake_runs.plan import notebook_names
from mirrorlake_runs.records import list_runs, write_whole

MARK = ".mirrorlake-lab.json"
KEPT = "kept"
_EXTENSION = "mirrorlake"
LAB_ENVIRONMENT = {VARIABLE: "1"}  # lets kernels show Spark's progress


def lab_folder() -> Path:
    """Return the default folder of the copies: `lab/` in MIRRORLAKE_HOME, or in the project."""
    return home() / "lab"


def make_workbench(folder: Path, *, reset: bool = False) -> int:
    """Copy the notebooks and docs into a folder, and update copies that nobody changed.

    Args:
        folder: a folder that is absent, empty, or was created by an earlier call. A folder that
            `make_course` created stays as it is.
        reset: replace changed copies as well; the changed ones are moved to `kept/`.

    Returns:
        The number of changed copies, before `reset` replaced them.

    Raises:
        UsageError: the notebooks are not installed, the folder contains other files, or a
            course's folder is to be reset.
    """
    if (folder / COURSE_MARK).is_file():
        if reset:
            raise UsageError(
                f"{folder} contains copies of the course, which lab does not replace.",
                hint="create new copies in an empty folder, with the command course.",
            )
        return 0
    if not NOTEBOOKS.is_dir():
        raise UsageError(
            "The notebooks are not installed.",
            hint="clone the project's repository and run this there.",
        )
    mark = folder / MARK
    if folder.is_dir() and any(folder.iterdir()) and not mark.is_file():
        raise UsageError(f"{folder} contains other files.", hint="choose an empty folder.")
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
    """Return the content of a copy: lessons without solutions, notebooks with this kernel's name.

    With another kernel's name Lab marks a notebook as modified as soon as its kernel has started.
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
    """Write Lab's settings into the cache, and return the folder for `app_settings_dir`.

    The settings in `lab_settings.json` switch the news off, render Markdown files, and show full
    file names.
    """
    folder = cache() / "lab-settings"
    write_whole(folder / "overrides.json", _file("lab_settings.json"))
    return folder


def lab_command(python: str, folder: Path, *more: str) -> list[str]:
    """Return the command that opens JupyterLab on a folder, at its start page."""
    return [
        *(python, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"),
        f"--LabApp.app_settings_dir={write_settings()}",
        f"--LabApp.extra_labextensions_path={_write_extension()}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.news_url=None",
        f"--LabApp.default_url=/lab/tree/{START}",
        *more,
    ]


def start_page() -> str:
    """Return the start page: all notebooks, and the duration of their last run on this machine."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(),
        keep_trailing_newline=True,
    )
    return environment.get_template("start_page.md.j2").render(
        parts=_parts(), seconds=_seconds(), first_lines=_first_lines, name_of=_name_of
    )


def _parts() -> dict[str, list[Path]]:
    return {
        "Lessons": sorted(NOTEBOOKS.glob("learn/*.ipynb")),
        "Tools": sorted(NOTEBOOKS.glob("*.ipynb")),
    }


def _write_extension() -> Path:
    """Write Lab's extension into the cache, and return the folder for `extra_labextensions_path`.

    The launcher shows a card for each notebook; lessons have their numbers and are in order.
    """
    cards = []
    for category, paths in _parts().items():
        for path in paths:
            name, said = _first_lines(path)
            number = path.stem.partition("_")[0]
            label = f"{int(number)}. {name}" if number.isdigit() else name
            card = {"path": _name_of(path), "label": label, "title": said, "category": category}
            cards.append(card)
    text = f"const CARDS = {json.dumps(cards, indent=1)};\n{_file('lab_extension.js')}"
    load = f"static/remoteEntry.{fingerprint(text)}.js"
    package = {
        "name": _EXTENSION,
        "version": "0.1.0",
        "description": "Cards, alternative texts of charts, and Spark's progress",
        "jupyterlab": {"extension": True, "_build": {"load": load, "extension": "./extension"}},
    }
    place = cache() / "lab-extensions"
    write_whole(place / _EXTENSION / load, f"(() => {{\n{text}}})();\n")
    write_whole(place / _EXTENSION / "package.json", json.dumps(package, indent=1))
    return place


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _sources() -> list[Path]:
    found = [NOTEBOOKS / f"{name}.ipynb" for name in notebook_names()]
    for ending in ("md", "png"):  # pages and their pictures
        found += (PROJECT / "docs").rglob(f"*.{ending}")
    return sorted([*found, *PROJECT.glob("README.md")])


def _name_of(source: Path) -> str:
    if source.is_relative_to(NOTEBOOKS):
        return (Path("notebooks") / source.relative_to(NOTEBOOKS)).as_posix()
    return source.relative_to(PROJECT).as_posix()


def _first_lines(path: Path) -> tuple[str, str]:
    """Return a notebook's title and summary for a Markdown table."""
    title, said = first_words(nbformat.read(path, as_version=4))  # type: ignore[no-untyped-call]
    return title, said.replace("|", "\\|")


def _seconds() -> dict[str, float]:
    """Return the duration in seconds of each notebook's newest successful run."""
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
