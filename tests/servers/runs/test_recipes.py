"""The recipes of docs/schedule.md with the real schedulers, in separate environments.

The tests run the page's own code; they replace only its paths.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.environments import add_kernel, bare_environment, make_environment
from helpers.ports import free_port
from helpers.project import NOTEBOOKS, PROJECT
from helpers.small_notebooks import RECORD, put_notebook, put_plan
from mirrorlake import Lake

PAGE = (PROJECT / "docs" / "schedule.md").read_text(encoding="utf-8")
AIRFLOW = ("apache-airflow==3.3.2", "apache-airflow-providers-papermill==3.13.3")
SCHEDULER = ("jupyter-scheduler==2.12.1", "jupyterlab==4.6.6")
LAUNCHER = "/opt/mirrorlake/.venv/bin/mirrorlake"
HERE = f"env PYTHONPATH={PROJECT / 'lib'} {sys.executable} -m mirrorlake.cli"


def recipe(name: str, **places: Path | str) -> str:
    """Return a block of the page by its first line, with paths of the test."""
    (block,) = [
        part for part in PAGE.split("```") if part.removeprefix("python\n").startswith(name)
    ]
    text = block.partition("\n")[2]
    for shown, place in {LAUNCHER: HERE, **places}.items():
        assert shown in text or shown == LAUNCHER, shown
        text = text.replace(shown, str(place))
    return text


def test_cron_starts_a_plan_with_an_empty_environment(tmp_path: Path) -> None:
    """Run the page's line under `env -i` and cron's shell."""
    put_notebook(tmp_path, "n", RECORD, head='rows: int = 1\nword: str = ""\nroot: str = ""')
    plan = put_plan(tmp_path, "name: nightly\nsteps: [{notebook: n.ipynb}]", "nightly")
    (line,) = [line for line in PAGE.splitlines() if line.startswith("0 2 * * * ")]
    command = line.removeprefix("0 2 * * * ")
    kept = " ".join(f"{name}={value}" for name, value in bare_environment(tmp_path).items())
    for shown, place in {
        "/opt/mirrorlake/mirrorlake": f"env {kept.replace('PATH=', 'X=')} {HERE}",
        "/etc/lake/nightly.yaml": str(plan),
        "/data/lake": str(tmp_path / "lake"),
        "/var/log/nightly.log": str(tmp_path / "log"),
    }.items():
        assert shown in command
        command = command.replace(shown, place)
    done = subprocess.run(["env", "-i", "/bin/sh", "-c", command], cwd="/", check=False)
    log = (tmp_path / "log").read_text()
    assert done.returncode == 0, log
    assert "executed notebooks" in log
    (summary,) = (tmp_path / "home" / "runs").glob("*/summary.json")
    assert json.loads(summary.read_text())["status"] == "done"


@pytest.mark.long
def test_airflow_loads_the_dags_and_shows_what_fails(tmp_path: Path) -> None:
    python = make_environment("airflow", *AIRFLOW)
    flag, lake, dags = tmp_path / "flag", tmp_path / "lake", tmp_path / "airflow" / "dags"
    check = f"assert __import__('os').path.exists({str(flag)!r}), 'no flag'"
    put_notebook(tmp_path, "needs", check, RECORD, head='rows: int = 1\nword: str = "a"\nroot = ""')
    plan = put_plan(tmp_path, "name: nightly\nsteps: [{notebook: needs.ipynb}]", "nightly")
    dags.mkdir(parents=True)
    places = {"/etc/lake/nightly.yaml": plan, "/data/lake": lake}
    (dags / "nightly.py").write_text(recipe("# dags/nightly.py", **places))
    places = {"/opt/lake/notebooks": NOTEBOOKS, "/var/lib/lake": tmp_path, "/data/lake": lake}
    (dags / "lake_monitor.py").write_text(recipe("# dags/lake_monitor.py", **places))
    settings = {"CORE__LOAD_EXAMPLES": False, "CORE__DAGBAG_IMPORT_TIMEOUT": 600}
    environment = bare_environment(tmp_path) | add_kernel(tmp_path / "kernels", "mirrorlake")
    environment |= {"AIRFLOW_HOME": str(tmp_path / "airflow")}
    environment |= {f"AIRFLOW__{name}": str(value) for name, value in settings.items()}

    def airflow(*arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [str(python), "-m", "airflow", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout[-4000:]
        return done.stdout

    airflow("db", "migrate")
    assert "No data found" in airflow("dags", "list-import-errors", "--local")
    for number, status in enumerate((1, 0), 1):
        for dag, said in (("nightly", "no flag"), ("lake_monitor", "is not a lake")):
            shown = airflow("dags", "test", dag, f"2026-02-0{number}", status=status)
            assert f"state={'failed' if status else 'success'}" in shown
            assert (said in shown) == bool(status)
        flag.touch()
        Lake(lake).publisher("t", keys=["id"]).upsert([{"id": 1}])
    runs = sorted((tmp_path / "home" / "runs").glob("nightly-*/summary.json"))
    assert [json.loads(one.read_text())["status"] for one in runs] == ["failed", "done"]
    assert (tmp_path / "monitor-2026-02-02.ipynb").is_file()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the address and the folder of a JupyterLab with jupyter-scheduler."""
    python = make_environment("jupyter-scheduler", *SCHEDULER)
    folder, port = tmp_path / "lab", free_port()
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns("learn", ".*"))
    environment = bare_environment(tmp_path) | add_kernel(tmp_path / "kernels", "python3")
    options = ["--no-browser", "--allow-root", f"--port={port}", "--ServerApp.port_retries=0"]
    options += ["--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"]
    command = [str(python), "-m", "jupyterlab", *options, f"--ServerApp.root_dir={folder}"]
    with (
        (tmp_path / "lab.log").open("wb") as log,
        subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log) as server,
    ):
        try:
            yield f"http://127.0.0.1:{port}/scheduler", folder
        finally:
            server.terminate()


def ask(url: str, document: Any = None, patience: float = 600) -> Any:
    """Return the server's response; retry until the server is up."""
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    end = time.monotonic() + patience
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


@pytest.mark.long
def test_labs_scheduler_runs_a_tool_with_parameters(lab: tuple[str, Path], tmp_path: Path) -> None:
    """A failure is shown; values are written as Python, as the page says."""
    url, _ = lab
    (tmp_path / "new.csv").write_text("item,n\nbolt,3\nnut,4\n")
    (found, *_) = ask(f"{url}/runtime_environments")
    values = {"root": str(tmp_path / "lake"), "table": "stock", "source": str(tmp_path / "new.csv")}
    states = {}
    for name, source in (("done", values["source"]), ("failed", str(tmp_path / "gone.csv"))):
        job = {
            "name": name,
            "input_uri": "publish.ipynb",
            "runtime_environment_name": found["name"],
            "output_formats": ["ipynb"],
            "parameters": {k: f'"{v}"' for k, v in (values | {"source": source}).items()},
        }
        one = ask(f"{url}/jobs", job)["job_id"]
        end = time.monotonic() + 600
        # A job whose process has not begun is listed as STOPPED.
        while (state := ask(f"{url}/jobs/{one}"))["status"] not in ("COMPLETED", "FAILED"):
            assert time.monotonic() < end, (tmp_path / "lab.log").read_text()
            time.sleep(0.5)
        states[name] = state
    assert states["done"]["status"] == "COMPLETED", (tmp_path / "lab.log").read_text()
    assert states["failed"]["status"] == "FAILED"
    assert "There is no file to publish at" in states["failed"]["status_message"]
    (published,) = (tmp_path / "lake" / "Files" / "LandingZone" / "stock").glob("0*.parquet")
    assert Lake(tmp_path / "lake").status().tables[0].backlog_files == 1
    assert published.stat().st_size
