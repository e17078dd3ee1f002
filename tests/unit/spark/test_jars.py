"""The Delta jars: fetched once, and checked against their pinned checksums."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from mirrorlake.errors import SetupError
from mirrorlake.spark import jars

FIRST, *OTHERS = jars.SHA256


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIRRORLAKE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Resolver:
    """A fake resolver that writes small files instead of jars; their contents can be changed."""

    def __init__(self) -> None:
        self.calls = 0
        self.content = {name: name.encode() for name in jars.SHA256}

    def __call__(self, _jars: jars.JarSet, scratch: Path) -> Path:
        self.calls += 1
        folder = scratch / "ivy" / "jars"
        folder.mkdir(parents=True)
        for name, content in self.content.items():
            (folder / f"io.delta_{name}-{jars.VERSION}.jar").write_bytes(content)
        (folder / "org.example_other-1.jar").write_bytes(b"not wanted")
        return folder


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    resolver = Resolver()
    monkeypatch.setattr(jars, "_resolve", resolver)
    pinned = {name: hashlib.sha256(text).hexdigest() for name, text in resolver.content.items()}
    monkeypatch.setattr(jars, "SHA256", pinned)
    return resolver


def entries(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_pinned_hashes_are_hashes_of_the_version_in_the_lock() -> None:
    assert len(jars.SHA256) == len(set(jars.SHA256.values())) == 5
    assert all(len(bytes.fromhex(pinned)) == 32 for pinned in jars.SHA256.values())


def test_five_jars_are_put_in_place_once(resolver: Resolver, cache: Path, notices) -> None:
    found = jars.delta_jars()
    assert [path.name for path in found] == [f"{name}-{jars.VERSION}.jar" for name in jars.SHA256]
    assert [path.read_bytes() for path in found] == list(resolver.content.values())
    kept = entries(cache / "jars")
    assert len(kept) == 6
    assert jars.delta_jars() == found
    assert (resolver.calls, entries(cache / "jars")) == (1, kept)
    assert notices.messages == ["Fetching the 5 Delta jars (12 MB, once) …"]


def test_a_jar_that_is_not_the_pinned_one_is_refused(resolver: Resolver, cache: Path) -> None:
    right = resolver.content[OTHERS[1]]
    resolver.content[OTHERS[1]] = b"something else"
    with pytest.raises(SetupError) as caught:
        jars.delta_jars()
    text = str(caught.value)
    assert f"{OTHERS[1]}-{jars.VERSION}.jar has SHA-256" in text
    assert hashlib.sha256(b"something else").hexdigest() in text
    assert f"not the pinned {hashlib.sha256(right).hexdigest()}" in text
    assert "Hint: check what your Maven mirror serves" in text
    assert entries(cache / "jars") == []
    resolver.content[OTHERS[1]] = right
    assert len(jars.delta_jars()) == 5


def test_a_jar_that_was_not_brought(resolver: Resolver, cache: Path) -> None:
    del resolver.content[FIRST]
    with pytest.raises(SetupError, match=f"did not fetch io.delta_{FIRST}.*Hint: try again"):
        jars.delta_jars()
    assert entries(cache / "jars") == []


def test_a_jar_that_is_gone_later(resolver: Resolver) -> None:
    found = jars.delta_jars()
    found[2].unlink()
    with pytest.raises(SetupError) as caught:
        jars.delta_jars()
    assert caught.value.message == f"The cache of jars is incomplete, without {found[2].name}."
    assert caught.value.hint == f"delete {found[2].parent} and try again."
    for path in found[2].parent.iterdir():
        path.unlink()
    assert jars.delta_jars() == found
    assert resolver.calls == 2


def test_a_folder_without_its_mark_is_fetched_again(resolver: Resolver, cache: Path) -> None:
    """Such a folder remains if a process is killed while it deletes it."""
    (cache / "jars" / jars.VERSION).mkdir(parents=True)
    (cache / "jars" / jars.VERSION / f"{FIRST}-{jars.VERSION}.jar").write_bytes(b"half")
    assert [path.read_bytes() for path in jars.delta_jars()] == list(resolver.content.values())


def test_two_at_once_fetch_once(resolver: Resolver, cache: Path) -> None:
    found: list[list[Path]] = []
    threads = [threading.Thread(target=lambda: found.append(jars.delta_jars())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert all(path.is_file() for path in found[0])
    assert resolver.calls == 1
    assert [path.name for path in (cache / "jars").iterdir()] == [jars.VERSION]


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that replaces spark-submit with a script."""
    program = tmp_path / "pyspark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))

    def put(script: str) -> Path:
        program.write_text(f"#!/bin/sh\n{script}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return tmp_path

    return put


# The output of Spark 4.1 with an unreachable repository, shortened.
UNREACHABLE = r"""
cat >&2 <<'END'
:: loading settings :: url = jar:file:/pyspark/jars/ivy-2.5.3.jar!/org/apache/ivy/ivysettings.xml
:: problems summary ::
module not found: io.delta#delta-spark_4.1_2.13;4.4.0
==== repo: tried
-- artifact io.delta#delta-spark_4.1_2.13;4.4.0!delta-spark_4.1_2.13.jar:
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: io.delta#delta]
at org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:613)
END
exit 1
"""


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            UNREACHABLE,
            "module not found: io.delta#delta-spark_4.1_2.13;4.4.0 | "
            'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: '
            "io.delta#delta].",
        ),
        ("echo 'No space left on device' >&2; exit 1", "fetched: No space left on device."),
        ("exit 1", "could not be fetched: ."),
    ],
)
def test_a_resolver_that_fails_tells_why_and_what_to_do(submit, cache, script, told) -> None:
    submit(script)
    with pytest.raises(SetupError) as caught:
        jars.delta_jars()
    text = str(caught.value)
    assert "The Delta jars could not be fetched" in text
    assert told in text
    assert "check the network, or set the variable DEFAULT_ARTIFACT_REPOSITORY" in text
    assert entries(cache / "jars") == []


def test_the_resolver_is_asked_for_the_five_and_nothing_else(submit, monkeypatch) -> None:
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://127.0.0.1:9")
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    folder = submit('printf "%s\\n" "$@" >"${0%/*}/arguments"; env >"${0%/*}/environment"')
    with pytest.raises(SetupError, match="did not fetch"):
        jars.delta_jars()
    arguments = (folder / "pyspark" / "bin" / "arguments").read_text().splitlines()
    packages = arguments[arguments.index("--packages") + 1].split(",")
    assert packages == [f"io.delta:{name}:{jars.VERSION}" for name in jars.SHA256]
    assert "local[1]" in arguments
    environment = (folder / "pyspark" / "bin" / "environment").read_text().splitlines()
    assert "DEFAULT_ARTIFACT_REPOSITORY=http://127.0.0.1:9" in environment
    assert not [line for line in environment if line.startswith("SPARK_REMOTE=")]
    assert os.environ["SPARK_REMOTE"] == "sc://elsewhere"
