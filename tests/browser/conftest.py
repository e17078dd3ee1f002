"""JupyterLab in Chromium, on a lake without Spark; skipped if Chromium is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest

from helpers.lab import READY
from helpers.old_lake import unpack
from helpers.project import PROJECT
from mirrorlake import Lake
from mirrorlake_lab import workbench

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
TOKEN = "browser"
PATIENCE = 150.0  # seconds that a server or a kernel may take to start on a busy machine
PICTURES = PROJECT / "docs" / "pictures"
# Close the current notebook without a question about its unsaved outputs.
CLOSE = """() => {
    const notebook = window.jupyterapp.shell.currentWidget;
    notebook.context.model.dirty = false;
    notebook.close();
}"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = "Chromium" if CHROMIUM is None else ""
    missing = missing or ("" if importlib.util.find_spec("playwright") else "playwright")
    if missing:
        reason = f"tests in a browser need {missing}: apt-get install chromium, or the extra dev"
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@dataclass
class Server:
    """A running JupyterLab."""

    url: str
    folder: Path
    lake: Lake


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("browser")
    lake = Lake(unpack(place))
    folder = place / "lab"
    workbench.make_workbench(folder)
    # Render all cells of a notebook, not only the visible ones.
    whole = place / "settings/@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
    whole.parent.mkdir(parents=True)
    whole.write_text('{"windowingMode": "none"}', encoding="utf-8")
    environment = (
        os.environ
        | workbench.LAB_ENVIRONMENT
        | {
            "JUPYTER_RUNTIME_DIR": str(place / "runtime"),
            "JUPYTER_CONFIG_DIR": str(place / "config"),
            "JUPYTER_DATA_DIR": str(place / "data"),
            "JUPYTERLAB_SETTINGS_DIR": str(place / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(place / "workspaces"),
            "IPYTHONDIR": str(place / "ipython"),
            "MIRRORLAKE_CACHE": str(place / "cache"),
            "MIRRORLAKE_HOME": str(place),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
    )
    command = workbench.lab_command(
        *(sys.executable, folder, "--no-browser", "--ServerApp.port=0", "--allow-root"),
        *(f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True"),
    )
    with (place / "lab.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield Server(_address(process, place), folder, lake)
        finally:
            process.terminate()
            process.wait(30)


def _address(process: subprocess.Popen[bytes], place: Path) -> str:
    """Return the server's address as soon as it is known."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        for found in (place / "runtime").glob("jpserver-*.json"):
            try:
                return str(json.loads(found.read_text(encoding="utf-8"))["url"])
            except (ValueError, KeyError):
                break  # the file is incomplete
        time.sleep(0.1)  # there is no event for another process's file
    raise AssertionError((place / "lab.log").read_text(encoding="utf-8")[-2000:])


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


def load_lab(server: Server, browser: Any) -> Any:
    """Return a page with Lab as it starts; loading it takes seconds."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(f"{server.url}?token={TOKEN}&reset")
    page.wait_for_selector(".jp-MarkdownViewer h1")
    return page


@pytest.fixture(scope="package")
def lab(server: Server, browser: Any) -> Iterator[Any]:
    """The page in which `look` opens and closes its notebooks."""
    page = load_lab(server, browser)
    yield page
    page.context.close()


@pytest.fixture
def look(server: Server, lab: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that opens and runs a notebook of one cell in Lab, and returns the page."""
    made: list[Path] = []

    def run(name: str, source: str, *, width: int = 1280, theme: str = "Light") -> Any:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        path = server.folder / f"{name}.ipynb"
        nbformat.write(notebook, path)
        made.append(path)
        lab.set_viewport_size({"width": width, "height": 900})
        command(lab, "apputils:change-theme", {"theme": f"JupyterLab {theme}"})
        light = str(theme == "Light").lower()
        lab.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")
        command(lab, "docmanager:open", {"path": path.name})
        lab.wait_for_selector(".jp-Notebook .jp-Cell")
        lab.wait_for_function(READY)
        command(lab, "notebook:run-all-cells")
        return lab

    yield run
    for path in made:
        lab.evaluate(CLOSE)
        path.unlink()


def command(page: Any, name: str, arguments: dict[str, Any] | None = None) -> None:
    """Start one of Lab's commands without waiting for its result."""
    page.evaluate(
        "([name, args]) => { window.jupyterapp.commands.execute(name, args); }",
        [name, arguments or {}],
    )


@pytest.fixture
def visit(server: Server, browser: Any) -> Iterator[Any]:
    """The page that Lab shows after its start."""
    page = load_lab(server, browser)
    yield page
    page.context.close()


@pytest.fixture
def save_picture(request: pytest.FixtureRequest) -> Callable[[Any, str], None]:
    """Return a function that saves a screenshot to docs/pictures, if `--pictures` is set."""

    def save(page: Any, name: str) -> None:
        if request.config.getoption("--pictures"):
            PICTURES.mkdir(exist_ok=True)
            page.screenshot(path=PICTURES / f"{name}.png")

    return save
