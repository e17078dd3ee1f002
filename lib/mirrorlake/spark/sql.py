"""Names and texts from outside, made safe for SQL and DDL."""

from __future__ import annotations


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
