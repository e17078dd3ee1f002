"""Rows as JSON, as the commands' `--json` prints them.

Timestamps are ISO-8601 (UTC where they have a zone), decimals and odd floats are strings, binary is
base64. This is a place where rows come to the driver: they are about to be shown.
"""

from __future__ import annotations

import base64
import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame


def rows_document(frame: DataFrame) -> dict[str, Any]:
    """`{"columns": [names], "rows": [{column: value}]}`."""
    table = frame.toArrow()
    rows = [{name: plain(value) for name, value in row.items()} for row in table.to_pylist()]
    return {"columns": table.column_names, "rows": rows}


def plain(value: Any) -> Any:
    """One value in JSON's own types."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, datetime):
        moment = value.astimezone(timezone.utc) if value.tzinfo else value
        return moment.isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
