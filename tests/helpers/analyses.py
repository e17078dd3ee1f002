"""Helpers of the tests of analyses."""

from __future__ import annotations

from typing import Any

MICROSOFT = {"com.microsoft.parquet.vorder.enabled": "true"}


def rows(analysis: Any, table: str) -> list[dict[str, Any]]:
    """Return the rows of one of an analysis's tables."""
    return [row.asDict() for row in analysis.tables[table].collect()]
