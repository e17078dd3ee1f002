"""What a commit says of itself, for people: rows inserted, updated and deleted, and what was done.

Each writer has its own names for the same figures: Delta on Spark `numTargetRowsInserted`, delta-rs
`num_target_rows_inserted`. Whatever a writer did not count is not known, and not taken for zero.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_INSERTED: Final = ("numTargetRowsInserted", "numOutputRows", "numAddedRows")
_UPDATED: Final = ("numTargetRowsUpdated", "numUpdatedRows")
_DELETED: Final = ("numTargetRowsDeleted", "numDeletedRows")
_WRITES: Final = ("WRITE", "STREAMING UPDATE", "COPY INTO", "CLONE")
_CREATES: Final = ("CREATE", "REPLACE", "CREATE OR REPLACE")
_KEEPS_ROWS: Final = (
    "OPTIMIZE", "REORG", "VACUUM", "SET", "UNSET", "ADD", "CHANGE", "RENAME", "DROP COLUMNS",
    "UPGRADE", "CLUSTER BY", "CONVERT", "COMPUTE",
)  # fmt: skip
_EXPRESSION_ID: Final = re.compile(r"#\d+L?\b")
_MOST: Final = 60


@dataclass(frozen=True)
class RowsChanged:
    """How many rows a commit inserted, updated and deleted; None where its writer did not say."""

    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None


def rows_changed(operation: str, metrics: Mapping[str, Any]) -> RowsChanged:
    """The rows that a commit changed, by what its writer counted.

    Args:
        operation: what was done, in Delta's words.
        metrics: the commit's figures, by Spark's or delta-rs's names.

    Example:
        >>> rows_changed("DELETE", {"num_deleted_rows": 3})
        RowsChanged(inserted=0, updated=0, deleted=3)
        >>> rows_changed("WRITE", {})
        RowsChanged(inserted=None, updated=0, deleted=None)
    """
    kind = operation.upper()
    known = {_as_spark_names(name): value for name, value in metrics.items()}
    inserted, updated, deleted = (
        next((int(known[name]) for name in names if isinstance(known.get(name), int)), None)
        for names in (_INSERTED, _UPDATED, _DELETED)
    )
    if kind.startswith(_KEEPS_ROWS):
        return RowsChanged(0, 0, 0)
    if kind == "DELETE":
        return RowsChanged(0, 0, deleted)
    if kind == "UPDATE":
        return RowsChanged(0, updated, 0)
    if kind.startswith(_CREATES):
        return RowsChanged(inserted if "SELECT" in kind or inserted else 0, 0, 0)
    if kind.startswith(_WRITES):
        return RowsChanged(inserted, 0, deleted)
    return RowsChanged(inserted, updated, deleted)


def describe_commit(
    operation: str, parameters: Mapping[str, Any], metrics: Mapping[str, Any], note: str | None
) -> str:
    """What was done, in a few words; empty where the operation says it all.

    Args:
        operation: as for `rows_changed`.
        parameters: the operation's, as the commit has them.
        metrics: as for `rows_changed`.
        note: the commit's `userMetadata`.

    Example:
        >>> describe_commit("DELETE", {"predicate": '["(id#12L < 5)"]'}, {}, None)
        '(id < 5)'
    """
    text = _said(note) or _done(operation.upper(), parameters, metrics)
    text = " ".join(text.split())
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


def _done(kind: str, parameters: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """What an operation did, by its parameters and figures."""
    known = {_as_spark_names(name): value for name, value in metrics.items()}
    if kind.startswith(("OPTIMIZE", "REORG")) and "numRemovedFiles" in known:
        return f"{known['numRemovedFiles']} files became {known.get('numAddedFiles', '?')}"
    if kind.startswith("RESTORE"):
        wanted = parameters.get("version")
        wanted = parameters.get("timestamp", "?") if wanted in (None, "") else f"version {wanted}"
        return f"to {wanted}"
    if kind in ("DELETE", "UPDATE"):
        return _predicate(parameters.get("predicate"))
    if kind.startswith(_WRITES):
        return str(parameters.get("mode") or "").lower()
    if kind.startswith(("SET", "UNSET")):
        return _plain(parameters.get("properties"))
    if kind.startswith(("ADD", "CHANGE", "RENAME", "DROP")):
        return ", ".join(filter(None, map(_plain, parameters.values())))
    return ""


def _said(note: str | None) -> str:
    """A note in words: the mirror's and the views' own ones by their numbers, other texts whole."""
    if not note:
        return ""
    try:
        document = json.loads(note)
    except ValueError:
        return note
    if not isinstance(document, dict):
        return note
    if "incarnation" in document and document.get("last"):
        return f"published files up to {document['last']}"
    if "refresh" in document and "mirrorlake.view" in document:
        return f"refresh {document['refresh']} of the view"
    return ""


def _predicate(text: Any) -> str:
    try:
        parts = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        parts = [text]
    parts = parts if isinstance(parts, list) else [parts]
    return " AND ".join(_EXPRESSION_ID.sub("", str(part)) for part in parts if part)


def _plain(value: Any) -> str:
    """JSON objects as `name = value, …`; columns by their names alone."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return str(value)
    if isinstance(found, dict) and isinstance(found.get("column"), dict):
        found = found["column"]
    if isinstance(found, dict) and "name" in found:
        return str(found["name"])
    if isinstance(found, dict):
        return ", ".join(f"{name} = {item}" for name, item in found.items())
    if isinstance(found, list):
        return ", ".join(filter(None, map(_plain, found)))
    return "" if found is None else str(found)


def _as_spark_names(name: str) -> str:
    """`num_deleted_rows` as `numDeletedRows`."""
    first, *others = name.split("_")
    return first + "".join(other[:1].upper() + other[1:] for other in others)
