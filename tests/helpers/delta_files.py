"""A slow, obvious reader of a Delta log: all commits are replayed to find a version's files."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

from mirrorlake.delta import actions


def log_file(folder: Path, version: int) -> Path:
    """Return the path of one commit of a table."""
    return folder / "_delta_log" / f"{version:020d}.json"


def newest_version(folder: Path) -> int:
    """Return the newest commit's number."""
    return max(
        int(path.stem)
        for path in (folder / "_delta_log").glob("[0-9]*.json")
        if path.stem.isdecimal()
    )


def needed_files(folder: Path, version: int | None = None) -> set[str]:
    """Return the data files and deletion vectors of a version, relative to the table.

    No commit may be missing.
    """
    found = {(path, vector) for path, (vector, _) in masked_files(folder, version).items()}
    return {name for pair in found for name in pair if name is not None}


def masked_files(folder: Path, version: int | None = None) -> dict[str, tuple[str | None, int]]:
    """Return a version's data files, each with its deletion vector and the rows it deletes."""
    live: dict[tuple[str, str | None], int] = {}
    last = newest_version(folder) if version is None else version
    for number in range(last + 1):
        lines = log_file(folder, number).read_text(encoding="utf-8").splitlines()
        listed = [json.loads(line) for line in lines]
        for kind in ("remove", "add"):
            for action in (a[kind] for a in listed if kind in a):
                vector = action.get("deletionVector") or {}
                key = unquote(action["path"]), actions.vector_path(vector)
                live.pop(key, None)
                if kind == "add":
                    live[key] = vector.get("cardinality", 0)
    return {path: (vector, masked) for (path, vector), masked in live.items()}


def data_files(folder: Path, version: int | None = None) -> set[str]:
    """Return only the data files of a version."""
    return {name for name in needed_files(folder, version) if not name.endswith(".bin")}


def files_on_disk(folder: Path) -> set[str]:
    """Return all files that VACUUM may delete, relative to the table."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        str(path)
        for path in found
        if path.parts[0] != "_delta_log" and not path.name.startswith(".")
    }
