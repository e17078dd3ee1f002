"""What is wrong with a table's `_metadata.json`: every field of it, not only the first."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any

from mirrorlake.errors import MetadataError
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.lint.findings import Finding, finding
from mirrorlake.names import METADATA
from mirrorlake.storage import Listing, Storage, to_json

_FIELDS = (
    "keyColumns",
    "fileDetectionStrategy",
    "isUpsertDefaultRowMarker",
    "fileFormat",
    "fileExtension",
    "FileFormatTypeProperties",
    "SchemaDefinition",
    "FirstRowAsHeader",
)
_PROPERTIES = (
    "FirstRowAsHeader",
    "RowSeparator",
    "ColumnSeparator",
    "QuoteCharacter",
    "EscapeCharacter",
    "NullValue",
    "Encoding",
)
# Without these nobody knows which files count, nor what their rows need.
_NEEDED = {"keycolumns", "filedetectionstrategy"}
_NEARLY = {METADATA, METADATA.lstrip("_"), "_metadata", f"{METADATA}.txt", "_meta_data.json"}


def lint_metadata(
    storage: Storage, table: str, folder: str, listing: Listing
) -> tuple[list[Finding], TableMetadata | None]:
    """Checks one table's `_metadata.json`.

    Returns:
        The findings; and what the file declares, without its wrong fields, or None if they are too
        important to go on without.
    """
    findings = [
        finding("metadata-name", f"{entry.name} is not read.", table=table, file=entry.name)
        for entry in listing.files
        if entry.name != METADATA and entry.name.lower() in _NEARLY
    ]
    try:
        data = storage.read(f"{folder}/{METADATA}")
    except FileNotFoundError:
        return findings, TableMetadata()
    try:
        document = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        text = f"{METADATA} is not valid JSON: {error}."
        return [*findings, finding("metadata-unreadable", text, table=table, file=METADATA)], None
    if not isinstance(document, dict):
        text = f"{METADATA} is not a JSON object."
        return [*findings, finding("metadata-unreadable", text, table=table, file=METADATA)], None
    findings += _unknown(table, document)
    try:
        return findings, TableMetadata.parse(data)
    except MetadataError as error:
        wrong, metadata = _salvage(document, error)
    return findings + [_invalid(table, error) for error in wrong], metadata


def _salvage(
    document: dict[str, Any], whole: MetadataError
) -> tuple[list[MetadataError], TableMetadata | None]:
    """What is wrong with each field by itself, and what the others declare."""
    wrong, kept = [], {}
    for name, value in document.items():
        try:
            TableMetadata.parse(to_json({name: value}))
            kept[name] = value
        except MetadataError as error:
            wrong.append(error)
    if not wrong:  # every field is fine by itself: two have one name
        return [whole], None
    if {name.lower() for name in document.keys() - kept.keys()} & _NEEDED:
        return wrong, None
    try:
        return wrong, TableMetadata.parse(to_json(kept))
    except MetadataError as error:
        return [*wrong, error], None


def _invalid(table: str, error: MetadataError) -> Finding:
    fix = f"Correct the field: {error.hint}" if error.hint else ""
    return finding(
        "metadata-invalid",
        error.message,
        table=table,
        file=METADATA,
        column=error.column,
        fix=fix,
    )


def _unknown(table: str, document: dict[str, Any]) -> Iterable[Finding]:
    lower = {name.lower(): value for name, value in document.items()}
    properties = lower.get("fileformattypeproperties")
    for fields, known in ((document, _FIELDS), (properties, _PROPERTIES)):
        words = {name.lower(): name for name in known}
        for name in fields if isinstance(fields, dict) else ():
            if name.lower() in words:
                continue
            near = difflib.get_close_matches(name.lower(), words, n=1)
            fix = f"Write {words[near[0]]} if that is meant, or remove the field." if near else ""
            text = f"{METADATA} has a field {name!r}, which is ignored."
            yield finding("metadata-unknown", text, table=table, file=METADATA, fix=fix)
