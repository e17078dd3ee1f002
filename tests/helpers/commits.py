"""Write commits of a table `t` action by action, for tests that read only the log."""

from __future__ import annotations

import json
from typing import Any

from mirrorlake.storage.files import Storage

LOG = "Tables/t/_delta_log"
META = {"metaData": {"id": "x", "schemaString": '{"fields": []}', "configuration": {}}}


def write_lines(storage: Storage, version: int, *actions: dict[str, Any], log: str = LOG) -> None:
    """Write a version with only these actions."""
    lines = [json.dumps(action, separators=(",", ":")) for action in actions]
    storage.write(f"{log}/{version:020d}.json", "\n".join(lines).encode() + b"\n")


def commit(storage: Storage, version: int, *actions: dict[str, Any], **info: object) -> None:
    """Write a version with a commit info, whose fields `info` overrides."""
    told = {"timestamp": 1, "operation": "WRITE", "operationMetrics": {"numFiles": "2"}, **info}
    write_lines(storage, version, {"commitInfo": told}, *actions)


def add(path: str) -> dict[str, Any]:
    """Return the action that adds a file."""
    return {"add": {"path": path, "size": 1, "dataChange": True}}


def remove(path: str, at: int) -> dict[str, Any]:
    """Return the action that removes a file at a timestamp, in milliseconds since 1970."""
    return {"remove": {"path": path, "deletionTimestamp": at, "dataChange": True}}
