"""Fetches sets of jars, such as Delta's, with Spark's resolver, once; checks and caches them.

The resolver uses the user's Ivy and Maven settings (`spark.jars.ivySettings` in
`spark-defaults.conf`, the `DEFAULT_ARTIFACT_REPOSITORY` variable), so this module names no host.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path

from mirrorlake.errors import SetupError
from mirrorlake.storage.paths import cache, make_once

_log = logging.getLogger(__name__)
VERSION = "4.4.0"
HADOOP = "3.4.2"
SHA256 = {
    "delta-spark_4.1_2.13": "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "delta-kernel-api": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-kernel-unitycatalog": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
}
# Delta's other dependencies come with Spark, or are not needed to read and write tables.
_EXCLUDED = "org.*:*,com.*:*,net.*:*,io.netty*:*,io.unitycatalog*:*,javax.*:*,jakarta.*:*"


@dataclass(frozen=True)
class JarSet:
    """A set of jars that are fetched together.

    Attributes:
        name: the name of the set in messages.
        folder: the name of its folder in the cache.
        packages: the packages that the resolver fetches.
        excluded: the packages that the resolver leaves out.
        sha256: the pinned checksums by file name, as the resolver names it, without its suffix.
        size: the size of all files, for messages.
    """

    name: str
    folder: str
    packages: tuple[str, ...]
    excluded: str
    sha256: Mapping[str, str]
    size: str = "12 MB"


def delta_jars() -> list[Path]:
    """Return the paths of Delta's five jars on this machine; see `fetched_jars`."""
    packages = tuple(f"io.delta:{name}:{VERSION}" for name in SHA256)
    pinned = {f"io.delta_{name}-{VERSION}": sha256 for name, sha256 in SHA256.items()}
    return fetched_jars(JarSet("Delta", VERSION, packages, _EXCLUDED, pinned))


def pyspark_home() -> Path:
    """Return the folder of the installed PySpark, with Spark's jars and programs."""
    import pyspark

    return Path(pyspark.__file__).parent


def read_sums(name: str) -> dict[str, str]:
    """Return the checksums of a set by file name, from a file in this package.

    The file has the format of `sha256sum`. The resolver's names begin with the name of the group.
    """
    # On an executor, this package is in a zip archive.
    text = files("mirrorlake.spark").joinpath(name).read_text(encoding="utf-8")
    return {name: pinned for pinned, name in (line.split() for line in text.splitlines())}


def fetched_jars(jars: JarSet) -> list[Path]:
    """Return the paths of a set's jars; they are fetched now if they are not in the cache.

    Raises:
        SetupError: the jars cannot be fetched, or a fetched jar does not have its pinned checksum.
    """
    folder = cache() / "jars" / jars.folder
    paths = [folder / _kept_name(name) for name in jars.sha256]
    make_once(folder, (folder / "checked").is_file, partial(_fetch, jars))
    if missing := [jar.name for jar in paths if not jar.is_file()]:
        raise SetupError(
            f"The cache of jars is incomplete, without {', '.join(missing)}.",
            hint=f"delete {folder} and try again.",
        )
    return paths


def _kept_name(name: str) -> str:
    return f"{name.removeprefix('io.delta_')}.jar"


def _fetch(jars: JarSet, folder: Path) -> None:
    _log.info(f"Fetching the {len(jars.sha256)} {jars.name} jars ({jars.size}, once) …")
    resolved = _resolve(jars, folder.parent)
    folder.mkdir()
    for name, pinned in jars.sha256.items():
        source = resolved / f"{name}.jar"
        if not source.is_file():
            raise SetupError(f"Spark's resolver did not fetch {source.name}.", hint="try again.")
        actual = hashlib.sha256(source.read_bytes()).hexdigest()
        if actual != pinned:
            raise SetupError(
                f"{_kept_name(name)} has SHA-256 {actual}, not the pinned {pinned}.",
                hint="check what your Maven mirror serves, clear its cache, and try again.",
            )
        shutil.move(source, folder / _kept_name(name))
    (folder / "checked").touch()


def _resolve(jars: JarSet, scratch: Path) -> Path:
    program = scratch / "nothing.py"
    program.touch()
    submit = pyspark_home() / "bin" / "spark-submit"
    packages = ",".join(jars.packages)
    command = [
        *(str(submit), "--master", "local[1]", "--packages", packages),
        *("--exclude-packages", jars.excluded, "--conf", f"spark.jars.ivy={scratch / 'ivy'}"),
        str(program),
    ]
    environment = {k: v for k, v in os.environ.items() if k != "SPARK_REMOTE"}
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        wanted = ("unresolved", "not found", "UnknownHost", "Exception", "Connection", "refused")
        lines = (done.stdout + done.stderr).splitlines()
        telling = [line.strip() for line in lines if any(word in line for word in wanted)]
        raise SetupError(
            f"The {jars.name} jars could not be fetched: {' | '.join(telling[:3] or lines[-1:])}.",
            hint="the first start needs a Maven repository: check the network, or set the variable"
            " DEFAULT_ARTIFACT_REPOSITORY to your own.",
        )
    return scratch / "ivy" / "jars"
