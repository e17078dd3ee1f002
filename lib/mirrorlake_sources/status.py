"""How each source stood when it last said so: documents under `Files/_mirrorlake/sources/`."""

from __future__ import annotations

from datetime import datetime, timezone

from mirrorlake.names import fingerprint
from mirrorlake.source_status import SourceReport, SourceTable
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept
from mirrorlake_sources.position import HOME

FORMAT = 1


def write_report(storage: Storage, report: SourceReport) -> None:
    """Leaves how a source stands now."""
    report.at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    name = fingerprint(report.source)
    storage.write_json(f"{HOME}/{name}.json", {"format": FORMAT} | report.as_dict())


def read_reports(storage: Storage) -> list[SourceReport]:
    """How all sources of a lake stood when they last said so.

    Raises:
        FormatError: a document is of a newer format.
    """
    found = []
    for entry in storage.list(HOME).files:
        document = read_kept(storage, f"{HOME}/{entry.name}", FORMAT)
        if document is not None and entry.name.endswith(".json"):
            tables = [SourceTable(**table) for table in document.pop("tables")]
            document.pop("format")
            found.append(SourceReport(tables=tables, **document))
    return found
