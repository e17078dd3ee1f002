"""What the user's `spark-defaults.conf` says: a session's own settings come on top, not instead."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_LINE = re.compile(r"\s*([^#!\s=:]+)(?:\s*[=:]\s*|\s+)(.*?)\s*$")


def spark_defaults() -> dict[str, str]:
    """The settings in the file that Spark's launcher reads: of `SPARK_CONF_DIR`, or Spark's own."""
    folder = os.environ.get("SPARK_CONF_DIR")
    home = os.environ.get("SPARK_HOME")
    if folder is None and home is not None:
        folder = f"{home}/conf"
    if folder is None:
        import pyspark

        folder = str(Path(pyspark.__file__).parent / "conf")
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {found[1]: found[2] for line in lines if (found := _LINE.match(line))}


def joined(ours: Iterable[str], theirs: str | None, separator: str) -> str:
    """A setting that is a list: ours first, then what the user's file adds."""
    added = [one for one in (theirs or "").split(separator) if one]
    return separator.join(dict.fromkeys([*ours, *added]))
