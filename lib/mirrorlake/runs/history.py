"""A run as a row of the Delta table `diagnostics.runs`, for plans that say `history: true`.

It starts Spark, so it takes some seconds; the rows are in the lake of the run's first root.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from mirrorlake.errors import UsageError
from mirrorlake.lake import Lake
from mirrorlake.paths import lake_path

TABLE = "diagnostics.runs"
_TEXTS = ("run", "plan", "status", "folder")
_DOCUMENTS = ("parameters", "versions", "steps")


def add_to_history(document: dict[str, Any], roots: set[str]) -> None:
    """Appends a run.

    Args:
        document: the run's record.
        roots: the lakes that it worked on.

    Raises:
        UsageError: no step has a root.
    """
    import pyarrow as pa

    if not roots:
        raise UsageError("The plan has history, but no step has a root.")
    row = {name: str(document[name]) for name in _TEXTS}
    row |= {name: json.dumps(document[name], ensure_ascii=False) for name in _DOCUMENTS}
    row |= {"host": str(document["process"]["host"])}
    times = {name: datetime.fromisoformat(document[name]) for name in ("started", "ended")}
    fields = [(name, pa.timestamp("us", tz="UTC")) for name in times]
    fields += [(name, pa.string()) for name in row]
    Lake(lake_path(min(roots))).write(TABLE, pa.Table.from_pylist([times | row], pa.schema(fields)))
