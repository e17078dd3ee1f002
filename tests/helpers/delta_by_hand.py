"""Write Delta tables without Spark, with exactly the files and log entries that a test needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

_TYPES = {
    "int64": "long",
    "string": "string",
    "double": "double",
    "int32": "integer",
    "timestamp[us, tz=UTC]": "timestamp",
}


def metadata(schema: pa.Schema, properties: dict[str, str] | None = None) -> dict[str, Any]:
    fields = [
        {"name": f.name, "type": _TYPES[str(f.type)], "nullable": True, "metadata": {}}
        for f in schema
    ]
    return {
        "metaData": {
            "id": "by-hand",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": properties or {},
        }
    }


@dataclass
class HandMade:
    """A Delta table to which each call of `commit` adds a version."""

    folder: Path
    version: int = 0
    adds: dict[str, dict[str, Any]] = field(default_factory=dict)

    def create(
        self, schema: pa.Schema, properties: dict[str, str] | None = None, *, writer: int = 2
    ) -> None:
        (self.folder / "_delta_log").mkdir(parents=True)
        protocol = {"minReaderVersion": 1, "minWriterVersion": writer}
        self.log("CREATE TABLE", [{"protocol": protocol}, metadata(schema, properties)])

    def file(
        self,
        name: str,
        rows: pa.Table,
        *,
        footer: dict[str, str] | None = None,
        tags: dict[str, str] | None = None,
        created: int = 1_700_000_000_000,
        **settings: Any,
    ) -> str:
        """Write a file, which `commit` adds to the table."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.replace_schema_metadata(footer), path, **settings)
        self.adds[name] = {
            "path": quote(name),
            "partitionValues": {},
            "size": path.stat().st_size,
            "modificationTime": created,
            "dataChange": True,
            "stats": json.dumps({"numRecords": rows.num_rows}),
            **({"tags": tags} if tags else {}),
        }
        return name

    def commit(
        self, operation: str, *, add: list[str] = (), remove: list[str] = (), **info: Any
    ) -> None:
        removes = [
            {"path": quote(n), "deletionTimestamp": 1_700_000_000_000, "dataChange": True}
            for n in remove
        ]
        actions = [{"add": self.adds[n]} for n in add] + [{"remove": r} for r in removes]
        self.log(operation, actions, **info)

    def log(self, operation: str, actions: list[dict[str, Any]], **info: Any) -> None:
        commit = {"timestamp": 1_700_000_000_000, "operation": operation, **info}
        lines = [json.dumps(line) for line in [{"commitInfo": commit}, *actions]]
        target = self.folder / "_delta_log" / f"{self.version:020d}.json"
        target.write_text("\n".join(lines) + "\n")
        self.version += 1
