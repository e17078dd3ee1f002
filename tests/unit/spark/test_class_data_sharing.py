"""Class archives: created once for a Java and a class path, used if they exist, never required."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

from mirrorlake.spark import java

JAVA = java.Java(Path("/jdk"), "17.0.1")
PATHS = [Path("a.jar"), Path("b.jar")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for jar in PATHS:
        jar.touch()
    monkeypatch.setenv("MIRRORLAKE_CACHE", str(tmp_path / "a cache"))
    monkeypatch.delenv("MIRRORLAKE_ARCHIVE_TRAINING", raising=False)
    return tmp_path / "a cache"


def test_each_java_and_class_path_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = java.archive_path(JAVA, PATHS)
    others = {
        java.archive_path(replace(JAVA, version="17.0.2"), PATHS),
        java.archive_path(replace(JAVA, home=Path("/other")), PATHS),
        java.archive_path(JAVA, PATHS[:1]),
        java.archive_path(JAVA, PATHS[::-1]),
        java.archive_path(JAVA, []),
    }
    assert mine == java.archive_path(JAVA, list(PATHS))
    assert len({mine, *others}) == 6
    monkeypatch.setattr(pyspark, "__file__", "/elsewhere/pyspark/__init__.py")
    assert java.archive_path(JAVA, PATHS) not in {mine, *others}


def test_files_of_another_age_or_size_have_another_which_takes_its_place(training) -> None:
    training("TARGET.write_bytes(b'archive')")
    other_path = java.ensure_archive(JAVA, PATHS[:1])
    for change in (lambda: os.utime(PATHS[1], (1, 1)), lambda: PATHS[1].write_text("larger")):
        before = java.ensure_archive(JAVA, PATHS)
        change()
        assert java.archive_flags(JAVA, PATHS) == ""
        after = java.ensure_archive(JAVA, PATHS)
        assert set(after.parent.iterdir()) == {other_path, after}
        assert before != after


def test_flags_name_an_archive_that_is_there(cache: Path) -> None:
    assert java.archive_flags(JAVA, PATHS) == ""
    path = java.archive_path(JAVA, PATHS)
    assert path.parent == cache / "archives"
    path.mkdir(parents=True)
    assert java.archive_flags(JAVA, PATHS) == ""
    path.rmdir()
    path.touch()
    assert f'"-XX:SharedArchiveFile={path}" -Xshare:auto' in java.archive_flags(JAVA, PATHS)
    assert java.archive_flags(JAVA, PATHS[:1]) == ""


def test_flags_in_a_training_process_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    path = java.archive_path(JAVA, PATHS)
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.setenv("MIRRORLAKE_ARCHIVE_TRAINING", "/x y/z.jsa")
    assert java.archive_flags(JAVA, PATHS) == '"-XX:ArchiveClassesAtExit=/x y/z.jsa"'


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that replaces the training module; TARGET is the path of the archive."""
    package = tmp_path / "stub" / "mirrorlake"
    (package / "cli").mkdir(parents=True)
    for folder in (package, package / "cli"):
        (folder / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))

    def put(program: str) -> Path:
        head = "import os, sys, pathlib\n"
        head += "TARGET = pathlib.Path(os.environ['MIRRORLAKE_ARCHIVE_TRAINING'])\n"
        (package / "cli" / "training.py").write_text(head + program)
        return tmp_path

    return put


def test_modules_of_the_working_folder_are_not_imported(
    training, cache: Path, monkeypatch, tmp_path: Path
) -> None:
    training(f"assert {str(tmp_path)!r} not in sys.path\nTARGET.write_bytes(b'archive')\n")
    monkeypatch.chdir(tmp_path)
    assert java.ensure_archive(JAVA, PATHS) is not None


def test_it_is_made_once(training, cache: Path, monkeypatch, notices) -> None:
    folder = training(
        "assert TARGET.parent == pathlib.Path(sys.argv[1])\n"
        "assert not {'SPARK_REMOTE', 'SPARK_CONF_DIR', 'MIRRORLAKE_PROFILE'} & set(os.environ)\n"
        "TARGET.write_bytes(b'archive')\n"
        f"with open({str(cache.parent / 'calls')!r}, 'a') as calls: calls.write('x')\n"
    )
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    monkeypatch.setenv("MIRRORLAKE_PROFILE", "small")
    path = java.ensure_archive(JAVA, PATHS)
    assert path == java.archive_path(JAVA, PATHS)
    assert path.read_bytes() == b"archive"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]
    (notice,) = notices.messages
    assert notice.startswith("Making a class archive, once")
    assert java.ensure_archive(JAVA, PATHS) == path
    assert (folder / "calls").read_text() == "x"
    assert notices.messages == [notice]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("", "no reason given"),
        ("sys.exit('out of luck')", "out of luck"),
        ("TARGET.write_bytes(b'half'); raise MemoryError('none left')", "MemoryError: none left"),
        ("TARGET.write_bytes(b'half'); os.kill(os.getpid(), 9)", "no reason given"),
        ("TARGET.mkdir()", "no reason given"),
    ],
)
def test_one_that_fails_leaves_nothing_and_says_so(training, notices, program, reason) -> None:
    training(program)
    assert java.ensure_archive(JAVA, PATHS) is None
    assert list(java.archive_path(JAVA, PATHS).parent.iterdir()) == []
    assert java.archive_flags(JAVA, PATHS) == ""
    assert notices.messages[1:] == [
        f"The class archive could not be made, so Spark starts without it: {reason}"
    ]
    training("TARGET.write_bytes(b'archive')")
    assert java.ensure_archive(JAVA, PATHS)
