"""The launcher on machines that lack packages or tools; nothing is downloaded or installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.project import PROJECT

TOOLS = ("sh", "dirname", "readlink", "cksum", "cat", "cp", "rm", "mkdir", "chmod", "ls")
TOOLS += ("sed", "grep", "sleep")
LOCK = """# made by uv
one==1 --hash=sha256:0
uv==2 \\
    --hash=sha256:1 \\
    --hash=sha256:2
    # via mirrorlake
zero==3 --hash=sha256:3
"""
PRINTS_ARGUMENTS = '#!/bin/sh\nfor a; do printf "<%s>" "$a"; done\n'
# A Python 3.12 that logs its arguments, and makes environments whose python prints its arguments.
# Its pip installs the uv that is stored beside it, if the lock's uv is requested.
PYTHON = """#!/bin/sh
echo "$*" >>"{log}"
case "$*" in
    -c*) exit {fits} ;;
    --version) echo Python 3.12.0 ;;
    "-m pip config"*) echo "{index}" ;;
    "-m venv"*)
        [ {venv} = 0 ] || exit {venv}
        mkdir -p "$3/bin"
        cat >"$3/bin/python" <<'END'
#!/bin/sh
case "$*" in
    "-m pip"*uv.txt) echo "pip $*" >>"{log}"; cp "{uv}" "${{0%/*}}/uv" ;;
    "-m pip"*) echo "pip $*" >>"{log}"; exit {pip} ;;
    *) for a; do printf "<%s>" "$a"; done ;;
esac
END
        chmod +x "$3/bin/python" ;;
esac
"""


class Machine:
    """Return a folder with the launcher, and a PATH with few programs."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.log = folder / "log"
        self.project = folder / "my project"
        self.venv = self.project / ".venv"
        self.stamp = self.venv / "mirrorlake-ready"
        self.main = self.venv / "bin" / "mirrorlake"
        self.environment: dict[str, str] = {}
        self.bin.mkdir()
        self.project.mkdir()
        self.log.touch()
        self.index = ""
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.bin / tool).symlink_to(found)
        shutil.copy(PROJECT / "mirrorlake", self.project)
        (self.project / "requirements.lock").write_text(LOCK)

    def program(self, path: Path, script: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)

    def python(
        self, name: str = "python3", *, fits: bool = True, venv: int = 0, pip: int = 0
    ) -> None:
        options = {"log": self.log, "uv": self.bin.parent / "uv", "index": self.index}
        script = PYTHON.format(fits=0 if fits else 1, venv=venv, pip=pip, **options)
        self.program(self.bin / name, script)

    def registry_uv(self, status: int = 0, before: str = "") -> None:
        """Put a uv into the registry that is not installed on this machine."""
        told = 'echo "uv $* index=${UV_DEFAULT_INDEX:-} trusts=${SSL_CERT_FILE:-}"'
        script = f'#!/bin/sh\n{before}\n{told} >>"{self.log}"\nexit {status}\n'
        self.program(self.bin.parent / "uv", script)

    def calls(self, tool: str) -> list[str]:
        lines = self.log.read_text().splitlines()
        return [line for line in lines if line.startswith(f"{tool} ")]

    def ready(self) -> None:
        self.program(self.venv / "bin" / "python", PRINTS_ARGUMENTS)
        shutil.copy(self.project / "requirements.lock", self.stamp)

    def run(
        self, *arguments: str, launcher: str | Path | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [launcher or self.project / "mirrorlake", *arguments],
            env={"PATH": str(self.bin), **self.environment},
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_no_python(machine: Machine) -> None:
    done = machine.run("demo")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "mirrorlake: there is no Python 3.10 or newer.\n"
        "mirrorlake: Hint: install one, or set MIRRORLAKE_PYTHON to its path.\n"
    )
    assert not machine.venv.exists()


def test_only_a_python_that_is_too_old(machine: Machine) -> None:
    machine.python(fits=False)
    done = machine.run("demo")
    assert done.returncode == 1
    assert "there is no Python 3.10 or newer" in done.stderr


@pytest.mark.parametrize(
    "name", ["python3.10", "python3.11", "python3.12", "python3.13", "python3.14", "python"]
)
def test_another_name_of_python_will_do(machine: Machine, name: str) -> None:
    machine.python(fits=False)
    machine.python(name)
    assert machine.run("demo").stdout == f"<{machine.main}><demo>"


def test_the_python_that_is_named_is_taken(machine: Machine) -> None:
    machine.python(venv=1)
    machine.python("mine")
    machine.environment["MIRRORLAKE_PYTHON"] = "mine"
    assert machine.run("demo").returncode == 0


def test_python_without_venv(machine: Machine) -> None:
    machine.python(venv=1)
    done = machine.run("demo")
    assert (done.returncode, done.stdout) == (1, "")
    *_, said, hint = done.stderr.splitlines()
    assert said == "mirrorlake: Python's venv module does not work."
    assert hint.startswith("mirrorlake: Hint: on Debian and Ubuntu: apt-get install python3-venv")
    assert not machine.venv.exists()


def test_first_run_sets_up_and_second_does_not(machine: Machine) -> None:
    machine.python()
    done = machine.run("sql", "a b", "*", '"', "", "--json")
    assert done.stdout == f'<{machine.main}><sql><a b><*><"><><--json>'
    assert "setting up" in done.stderr
    assert "with Python 3.12.0" in done.stderr
    assert done.stderr.endswith("mirrorlake: ready.\n")
    uv, lock, package = machine.calls("pip")
    assert uv.endswith(f"--no-deps --require-hashes -r {machine.venv}/uv.txt")
    assert lock.endswith(f"--require-hashes -r {machine.project}/requirements.lock")
    assert package.endswith(f"--no-deps --no-build-isolation -e {machine.project}")
    machine.log.write_text("")
    again = machine.run("demo")
    assert (again.stdout, again.stderr) == (f"<{machine.main}><demo>", "")
    assert machine.log.read_text() == ""


def test_python_keeps_what_it_compiles_whatever_an_image_says(machine: Machine) -> None:
    machine.ready()
    shows = '#!/bin/sh\nprintf "%s" "${PYTHONDONTWRITEBYTECODE-unset}"\n'
    machine.program(machine.venv / "bin" / "python", shows)
    machine.environment["PYTHONDONTWRITEBYTECODE"] = "1"
    assert machine.run("demo").stdout == "unset"


def test_uv_is_used_where_it_is(machine: Machine) -> None:
    machine.python(venv=1)
    make = f'mkdir -p "{machine.venv}/bin" && cp "{machine.bin}/stub" "{machine.venv}/bin/python"'
    machine.program(machine.bin / "stub", PRINTS_ARGUMENTS)
    machine.program(machine.bin / "uv", f'#!/bin/sh\necho "uv $*" >>"{machine.log}"\n{make}\n')
    assert machine.run("demo").stdout == f"<{machine.main}><demo>"
    calls = machine.calls("uv")
    assert len(calls) == 3
    assert machine.calls("pip") == []
    assert f"--python {machine.bin}/python3" in calls[0]
    assert "--require-hashes" in calls[1]
    assert "--no-deps --no-build-isolation -e" in calls[2]


def test_uv_is_taken_from_the_registry_where_it_is_not(machine: Machine) -> None:
    machine.python()
    machine.registry_uv()
    done = machine.run("demo")
    assert done.stdout == f"<{machine.main}><demo>"
    assert done.stderr.splitlines()[1:] == [
        "mirrorlake: fetching uv, which is quicker than pip …",
        "mirrorlake: installing 3 packages with uv …",
        "mirrorlake: ready.",
    ]
    (fetched,) = machine.calls("pip")
    assert fetched.endswith(f"--no-deps --require-hashes -r {machine.venv}/uv.txt")
    hashes = "    --hash=sha256:1 \\\n    --hash=sha256:2\n"
    assert (machine.venv / "uv.txt").read_text() == f"uv==2 \\\n{hashes}"
    lock, package = machine.calls("uv")
    assert f"--python {machine.venv}/bin/python --require-hashes -r " in lock
    assert f"--no-deps --no-build-isolation -e {machine.project} " in package


def test_pip_is_the_way_where_uv_does_not_work(machine: Machine) -> None:
    machine.python()
    machine.registry_uv(status=2)
    done = machine.run("demo")
    assert done.stdout == f"<{machine.main}><demo>"
    assert done.stderr.splitlines()[3:] == [
        "mirrorlake: uv failed; installing with pip takes some minutes.",
        "mirrorlake: installing 3 packages with pip …",
        "mirrorlake: ready.",
    ]
    assert len(machine.calls("uv")) == 1
    assert [call.split()[-1].split("/")[-1] for call in machine.calls("pip")] == [
        "uv.txt",
        "requirements.lock",
        ["my", "project"][-1],
    ]


def test_a_uv_of_the_machine_that_does_not_work_is_passed_over(machine: Machine) -> None:
    machine.python()
    machine.program(machine.bin / "uv", '#!/bin/sh\n[ "$1" = venv ]\n')
    assert machine.run("demo").stdout == f"<{machine.main}><demo>"
    lock, package = machine.calls("pip")
    assert lock.endswith("requirements.lock")
    assert package.endswith(f"-e {machine.project}")


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "index=of-the-file trusts="),
        ({"PIP_INDEX_URL": "mine", "PIP_CERT": "ca.pem"}, "index=mine trusts=ca.pem"),
        ({"UV_INDEX_URL": "other", "SSL_CERT_FILE": "x", "PIP_CERT": "y"}, "index= trusts=x"),
        ({"UV_DEFAULT_INDEX": "other", "PIP_INDEX_URL": "mine"}, "index=other trusts="),
    ],
)
def test_uv_asks_where_pip_would(machine: Machine, environment: dict[str, str], told: str) -> None:
    machine.index = "of-the-file"
    machine.python()
    machine.registry_uv()
    machine.environment |= environment
    assert machine.run("demo").returncode == 0
    assert all(call.endswith(told) for call in machine.calls("uv")), machine.calls("uv")


def test_progress_is_shown_on_a_terminal(machine: Machine) -> None:
    """Each stage has its own line, with its seconds."""
    machine.python()
    machine.registry_uv(before="sleep 1.3")
    screen, terminal = os.openpty()
    environment = {"PATH": str(machine.bin)}
    with os.fdopen(screen, "rb", buffering=0) as shown:
        done = subprocess.run(
            [machine.project / "mirrorlake", "demo"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=terminal,
            check=True,
        )
        os.close(terminal)
        text = b""
        with contextlib.suppress(OSError):  # the terminal was closed
            while part := shown.read(4096):
                text += part
    assert done.stdout == f"<{machine.main}><demo>".encode()
    *stages, last = text.decode().strip().split("\r\n")
    assert [stage.split("\r")[0] for stage in stages[1:]] == [
        "mirrorlake: fetching uv, which is quicker than pip …",
        "mirrorlake: installing 3 packages with uv …",
    ]
    # After a second, the line is overwritten.
    assert "\rmirrorlake: installing 3 packages with uv … 1 s" in stages[2]
    assert last == "mirrorlake: ready."


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_an_installation_that_fails_starts_over(machine: Machine, tool: str) -> None:
    machine.python(pip=1)
    if tool == "uv":
        machine.program(machine.bin / "uv", f'#!/bin/sh\necho "$*" >>"{machine.log}"\nexit 2\n')
    for _ in range(2):
        machine.log.write_text("")
        done = machine.run("demo")
        assert done.returncode != 0
        assert done.stdout == ""
        assert "ready" not in done.stderr
        assert not machine.stamp.exists()
        assert machine.log.read_text() != ""
    (machine.bin / "uv").unlink(missing_ok=True)
    machine.python()
    assert machine.run("demo").returncode == 0


def test_a_changed_lock_sets_up_again(machine: Machine) -> None:
    machine.ready()
    (machine.project / "requirements.lock").write_text("one==2 --hash=sha256:0\n")
    (machine.venv / "old").touch()
    machine.python()
    assert "setting up" in machine.run("demo").stderr
    assert not (machine.venv / "old").exists()
    assert machine.stamp.read_text().startswith("one==2")


def test_a_changed_project_file_installs_the_project_again(machine: Machine) -> None:
    """Commands are found by entry points, which an installation of an older version lacks."""
    machine.ready()
    (machine.project / "pyproject.toml").write_text("[project]\n")
    machine.program(machine.venv / "bin" / "uv", f'#!/bin/sh\necho "uv $*" >>"{machine.log}"\n')
    done = machine.run("demo")
    assert done.stdout == f"<{machine.main}><demo>"
    assert "pyproject.toml has changed" in done.stderr
    (call,) = machine.calls("uv")
    assert call.endswith(f"--no-deps --no-build-isolation -e {machine.project}")
    assert machine.run("demo").stderr == ""
    assert machine.calls("uv") == [call]


def test_an_environment_whose_python_is_gone_sets_up_again(machine: Machine) -> None:
    machine.ready()
    (machine.venv / "bin" / "python").unlink()
    (machine.venv / "bin" / "python").symlink_to(machine.bin / "gone")
    machine.python()
    assert machine.run("demo").stdout == f"<{machine.main}><demo>"


def test_an_environment_of_another_user_is_kept(machine: Machine) -> None:
    """Its python may be in a folder of that user, so that it only seems to be missing."""
    machine.python()
    if os.geteuid() == 0:
        machine.venv.mkdir()
        os.chown(machine.venv, 12345, -1)
    else:
        machine.venv.symlink_to("/etc")
    owner = machine.venv.stat().st_uid or "root"
    done = machine.run("demo")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"belongs to the user {owner}," in done.stderr
    assert f"Hint: run mirrorlake as {owner}, or install it as a package" in done.stderr
    assert machine.venv.exists()
    assert not machine.main.exists()


def test_exit_status_is_the_commands(machine: Machine) -> None:
    machine.ready()
    machine.program(machine.venv / "bin" / "python", "#!/bin/sh\nexit 42\n")
    assert machine.run("demo").returncode == 42


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_to_the_launcher_finds_its_project(
    machine: Machine, tmp_path: Path, absolute: bool
) -> None:
    """The environment of the project that contains the link is not changed."""
    machine.ready()
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / ".venv").mkdir(parents=True)
    target = machine.project / "mirrorlake" if absolute else Path("../my project/mirrorlake")
    (elsewhere / "first").symlink_to(target)
    (elsewhere / "second").symlink_to("first")
    done = machine.run("demo", launcher=elsewhere / "second")
    assert (done.stdout, done.stderr) == (f"<{machine.main}><demo>", "")
    assert (elsewhere / ".venv").is_dir()


def test_it_runs_from_any_folder(machine: Machine, tmp_path: Path) -> None:
    machine.ready()
    machine.environment["CDPATH"] = str(tmp_path)
    for cwd, launcher in (
        (machine.project, "./mirrorlake"),
        (tmp_path, "my project/mirrorlake"),
        (tmp_path / "bin", "../my project/mirrorlake"),
    ):
        done = machine.run("demo", launcher=launcher, cwd=cwd)
        assert done.stdout == f"<{machine.main}><demo>", done.stderr
