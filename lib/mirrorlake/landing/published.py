"""Who publishes into a zone, and what a published batch is told as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mirrorlake.text_table import TextTable, html_table


@dataclass(frozen=True)
class Partner:
    """Who publishes into a zone, for its `_partnerEvents.json`."""

    name: str = "mirrorlake"
    source_type: str = "Python"
    source_version: str = ""

    def document(self) -> dict[str, Any]:
        """The file's content, with the format's field names."""
        source = {"sourceType": self.source_type, "sourceVersion": self.source_version}
        return {
            "partnerName": self.name,
            "sourceInfo": source | {"additionalInformation": {}},
        }


@dataclass(frozen=True)
class Published:
    """One batch as it now lies in the zone.

    Attributes:
        file: its name; None if there was nothing to publish, or after a dry run.
        rows: how many rows it has.
        bytes: its size.
    """

    table: str
    file: str | None
    rows: int
    bytes: int

    def __repr__(self) -> str:
        if self.file is None and self.rows:
            return f"{self.table}: {self.rows:,} rows would be published: a dry run"
        if self.file is None:
            return f"{self.table}: no rows, nothing published"
        return f"{self.table}: {self.file}, {self.rows:,} rows, {self.bytes:,} bytes"

    def _repr_html_(self) -> str:
        row = (self.table, self.file, self.rows, self.bytes)
        return html_table(TextTable(("table", "file", "rows", "bytes"), (row,)))
