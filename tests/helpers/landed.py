"""The rows of a landing zone folder: its files applied in order by the reference model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from helpers.markers import MARKER, UNCHANGED, Marker
from helpers.model import TableModel
from mirrorlake.names import TableName, file_number


def folder_of(root: Path, table: str) -> Path:
    return root / TableName.parse(table).folder


def landed_files(root: Path, table: str) -> list[Path]:
    found = [path for path in folder_of(root, table).iterdir() if file_number(path.name)]
    return sorted(found)


def landed_rows(root: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of the table that a mirror would create; missing columns are NULL."""
    folder = folder_of(root, table)
    metadata = folder / "_metadata.json"
    keys = tuple(json.loads(metadata.read_text())["keyColumns"]) if metadata.exists() else ()
    model, columns = TableModel(keys), {}
    for number, path in enumerate(landed_files(root, table), start=1):
        assert file_number(path.name) == number, "a gap in the numbers"
        read = pq.read_table(path)
        columns |= dict.fromkeys(
            name for name in read.column_names if name not in (MARKER, UNCHANGED)
        )
        for row in read.to_pylist():
            model.apply(Marker(row.pop(MARKER, 0)), row)
    return [
        {name: row.get(name) for name in columns} for rows in model.rows.values() for row in rows
    ]
