"""Names, texts and paths from outside, made safe for SQL, DDL and Spark's readers."""

from __future__ import annotations

import re

_GLOB = re.compile(r"([\\{}\[\]*?])")


def quote(name: str) -> str:
    """An identifier; nothing in it can end the quotes."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """A string literal; nothing in it can end the quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def delta_name(path: str) -> str:
    """A Delta table by its path, as a table's name."""
    return f"delta.{quote(path)}"


def escape_glob(path: str) -> str:
    """A path for Spark's readers, which take some characters in it for a pattern."""
    return _GLOB.sub(r"\\\1", path)
