"""The launcher on machines that lack something; nothing is installed or fetched here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mirrorlake.paths import PROJECT

TOOLS = ("sh", "dirname", "readlink", "cksum", "cat", "cp", "rm", "mkdir", "chmod")
PRINTS_ARGUMENTS = '#!/bin/sh\nfor a; do printf "<%s>" "$a"; done\n'
# Of 3.12, says what it was called with, and makes an environment whose python prints its arguments.
PYTHON = """#!/bin/sh
echo "$*" >>"{log}"
case "$*" in
    -c*) exit {fits} ;;
    --version) echo Python 3.12.0 ;;
    "-m venv"*)
        [ {venv} = 0 ] || exit {venv}
        mkdir -p "$3/bin"
        cat >"$3/bin/python" <<'END'
#!/bin/sh
case "$*" in
    "-m pip"*) echo "$*" >>"{log}"; exit {pip} ;;
    *) for a; do printf "<%s>" "$a"; done ;;
esac
END
        chmod +x "$3/bin/python" ;;
esac
"""


class Machine:
    """A folder with the launcher in it, and a PATH with hardly anything."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.log = folder / "log"
        self.project = folder / "my project"
        self.venv = self.project / ".venv"
        self.stamp = self.venv / "mirrorlake-ready"
        self.environment: dict[str, str] = {}
        self.bin.mkdir()
        self.project.mkdir()
        self.log.touch()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.bin / tool).symlink_to(found)
        shutil.copy(PROJECT / "mirrorlake", self.project)
        (self.project / "requirements.lock").write_text("one==1 --hash=sha256:0\n")

    def program(self, path: Path, script: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)

    def python(
        self, name: str = "python3", *, fits: bool = True, venv: int = 0, pip: int = 0
    ) -> None:
        script = PYTHON.format(log=self.log, fits=0 if fits else 1, venv=venv, pip=pip)
        self.program(self.bin / name, script)

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
        "mirrorlake: Hint: install one, or name it in MIRRORLAKE_PYTHON.\n"
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
    assert machine.run("demo").stdout == "<-m><mirrorlake.cli><demo>"


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
    assert done.stdout == '<-m><mirrorlake.cli><sql><a b><*><"><><--json>'
    assert "setting up" in done.stderr
    assert "with Python 3.12.0" in done.stderr
    assert done.stderr.endswith("mirrorlake: ready.\n")
    lock, package = (line for line in machine.log.read_text().splitlines() if " install " in line)
    assert lock.endswith(f"--require-hashes -r {machine.project}/requirements.lock")
    assert package.endswith(f"--no-deps -e {machine.project}")
    machine.log.write_text("")
    again = machine.run("demo")
    assert (again.stdout, again.stderr) == ("<-m><mirrorlake.cli><demo>", "")
    assert machine.log.read_text() == ""


def test_uv_is_used_where_it_is(machine: Machine) -> None:
    machine.python(venv=1)
    make = f'mkdir -p "{machine.venv}/bin" && cp "{machine.bin}/stub" "{machine.venv}/bin/python"'
    machine.program(machine.bin / "stub", PRINTS_ARGUMENTS)
    machine.program(machine.bin / "uv", f'#!/bin/sh\necho "uv $*" >>"{machine.log}"\n{make}\n')
    assert machine.run("demo").stdout == "<-m><mirrorlake.cli><demo>"
    calls = [line for line in machine.log.read_text().splitlines() if line.startswith("uv ")]
    assert len(calls) == 3
    assert f"--python {machine.bin}/python3" in calls[0]
    assert "--require-hashes" in calls[1]
    assert "--no-deps -e" in calls[2]


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_an_installation_that_fails_is_begun_anew(machine: Machine, tool: str) -> None:
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


def test_an_environment_whose_python_is_gone_sets_up_again(machine: Machine) -> None:
    machine.ready()
    (machine.venv / "bin" / "python").unlink()
    (machine.venv / "bin" / "python").symlink_to(machine.bin / "gone")
    machine.python()
    assert machine.run("demo").stdout == "<-m><mirrorlake.cli><demo>"


def test_exit_status_is_the_commands(machine: Machine) -> None:
    machine.ready()
    machine.program(machine.venv / "bin" / "python", "#!/bin/sh\nexit 42\n")
    assert machine.run("demo").returncode == 42


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_to_the_launcher_finds_its_project(
    machine: Machine, tmp_path: Path, absolute: bool
) -> None:
    """And leaves the environment of whatever project the link stands in alone."""
    machine.ready()
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / ".venv").mkdir(parents=True)
    target = machine.project / "mirrorlake" if absolute else Path("../my project/mirrorlake")
    (elsewhere / "first").symlink_to(target)
    (elsewhere / "second").symlink_to("first")
    done = machine.run("demo", launcher=elsewhere / "second")
    assert (done.stdout, done.stderr) == ("<-m><mirrorlake.cli><demo>", "")
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
        assert done.stdout == "<-m><mirrorlake.cli><demo>", done.stderr
