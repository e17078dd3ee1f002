"""Lint folders: the zone and its schemas, `_metadata.json`, and the names and numbers of files."""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate
from typing import Any

from mirrorlake.errors import MetadataError, SequenceError
from mirrorlake.landing.lint_rules import LintFinding, finding
from mirrorlake.landing.metadata import BY_TIME, PROPERTIES, TableMetadata
from mirrorlake.landing.zone import BadFolder, Folder, by_number
from mirrorlake.names import (
    METADATA,
    PARTNER_EVENTS,
    SCHEMA_SUFFIX,
    ZONE,
    TableName,
    file_name,
    file_number,
)
from mirrorlake.storage.files import Entry, Listing, Storage, to_json

_STAGING = "_scratchPad"  # the format's own folder for staged files
NOTHING = Listing((), ())


def lint_root(storage: Storage, zone: Listing, schemas: list[str]) -> Iterator[LintFinding]:
    """Check the files and folders beside the tables, in the zone and in its schemas."""
    if zone == NOTHING:
        yield finding("zone-missing", f"{ZONE} is missing or empty.")
        return
    yield from _lint_partner(storage, zone)
    yield from _lint_outside(storage, "", zone)
    for folder in schemas:
        yield from _lint_outside(storage, f"{folder}/", storage.list(f"{ZONE}/{folder}"))


def _lint_outside(storage: Storage, inside: str, listing: Listing) -> Iterator[LintFinding]:
    for entry in listing.files:
        file = f"{inside}{entry.name}"
        if entry.name == METADATA or (
            looks_like_data(entry.name) and not entry.name.startswith(("_", "."))
        ):
            yield finding("file-misplaced", f"{file!r} is in no table's folder.", file=file)
        elif not entry.name.startswith(("_", ".")):
            yield finding("file-unexpected", f"{file!r} is not part of the format.", file=file)
    for folder in listing.folders:
        if not folder.startswith("_") or folder == _STAGING:
            continue
        files = storage.list(f"{ZONE}/{inside}{folder}").files
        held = [e for e in files if e.name == METADATA or looks_like_data(e.name)]
        if held:
            text = f"{folder!r} is ignored, but contains {held[0].name}."
            yield finding("folder-hidden", text, table=f"{inside}{folder}")


def _lint_partner(storage: Storage, zone: Listing) -> Iterator[LintFinding]:
    if zone.file(PARTNER_EVENTS) is None:
        yield finding("partner-missing", f"{PARTNER_EVENTS} is missing.", file=PARTNER_EVENTS)
        return
    try:
        document = json.loads(storage.read(f"{ZONE}/{PARTNER_EVENTS}").decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        text = f"{PARTNER_EVENTS} is not valid JSON: {error}."
        yield finding("partner-invalid", text, file=PARTNER_EVENTS)
        return
    outer = _fields(document)
    inner = _fields(outer.get("sourceinfo"))
    problems = [
        f"{name} is missing or not a string"
        for name, value in (
            ("partnerName", outer.get("partnername")),
            ("sourceInfo.sourceType", inner.get("sourcetype")),
        )
        if not isinstance(value, str) or not value
    ]
    if not isinstance(inner.get("sourceversion", ""), (str, type(None))):
        problems.append("sourceInfo.sourceVersion is not a string")
    if problems:
        yield finding("partner-invalid", f"{'; '.join(problems)}.", file=PARTNER_EVENTS)


def _fields(document: object) -> dict[str, object]:
    if not isinstance(document, dict):
        return {}
    return {str(name).lower(): value for name, value in document.items()}


def lint_folder_names(
    schemas: list[str], tables: list[TableName | BadFolder]
) -> Iterator[LintFinding]:
    """Check the names of folders, each by itself and against the others."""
    met: dict[tuple[str | None, str], str] = {}
    alike = []
    for folder in schemas:
        schema = folder.removesuffix(SCHEMA_SUFFIX)
        other = met.setdefault((None, _alike(schema)), folder)
        if other != folder:
            first = other.removesuffix(SCHEMA_SUFFIX)
            text = f"The schemas {schema!r} and {first!r} differ only by case."
            alike.append(finding("folder-case", text, table=folder))
    for table in tables:
        if isinstance(table, BadFolder):
            place = table.folder.removeprefix(f"{ZONE}/")
            yield finding("folder-name", table.error.message, table=place)
            continue
        if table.schema is None and f"{table.name}{SCHEMA_SUFFIX}" in schemas:
            text = f"The table {table} is named like the schema {table.name}."
            yield finding("folder-clash", text, table=str(table))
            continue
        if not table.fits_windows:
            text = f"Windows can't store folders with the name {str(table)!r}."
            yield finding("folder-windows", text, table=str(table))
        other = met.setdefault((table.schema, _alike(table.name)), table.name)
        if other != table.name:
            text = f"{table.name!r} and {other!r} differ only by case."
            yield finding("folder-case", text, table=str(table))
    yield from alike


def _alike(name: str) -> str:
    """Return a form of a name that is equal for names that a file system or a query may confuse."""
    return unicodedata.normalize("NFC", name).casefold()


_FIELDS = (
    "keyColumns",
    "fileDetectionStrategy",
    "isUpsertDefaultRowMarker",
    "isPartitionEnabled",
    "fileFormat",
    "fileExtension",
    "FileFormatTypeProperties",
    "SchemaDefinition",
    "FirstRowAsHeader",
)
# These fields determine which files are data files, and what their rows need.
_NEEDED = {"keycolumns", "filedetectionstrategy"}
_MISNAMED = {METADATA, METADATA.lstrip("_"), "_metadata", f"{METADATA}.txt", "_meta_data.json"}


def lint_metadata(
    storage: Storage, table: TableName, listing: Listing
) -> tuple[list[LintFinding], TableMetadata | None]:
    """Check one table's `_metadata.json`.

    Returns:
        The findings, and the declarations without invalid fields; None if the invalid fields are
        necessary to check the files.
    """
    report = partial(finding, table=str(table), file=METADATA)
    findings = [
        report("metadata-name", f"{entry.name} is ignored.", file=entry.name)
        for entry in listing.files
        if entry.name != METADATA and entry.name.lower() in _MISNAMED
    ]
    try:
        data = storage.read(f"{table.folder}/{METADATA}")
    except FileNotFoundError:
        return findings, TableMetadata()
    try:
        document = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        document = None  # `TableMetadata.parse` raises the error
    if isinstance(document, dict):
        findings += _unknown(document, report)
    try:
        return findings, TableMetadata.parse(data)
    except MetadataError as error:
        if not isinstance(document, dict):
            return [*findings, report("metadata-unreadable", error.message)], None
        wrong, metadata = _salvage(document, error)
    for one in wrong:
        fix = f"Correct the field: {one.hint}" if one.hint else ""
        findings.append(report("metadata-invalid", one.message, column=one.column, fix=fix))
    return findings, metadata


def _salvage(
    document: dict[str, Any], whole: MetadataError
) -> tuple[list[MetadataError], TableMetadata | None]:
    """Return the error of each field by itself, and the declarations of the valid fields."""
    wrong, kept = [], {}
    for name, value in document.items():
        try:
            TableMetadata.parse(to_json({name: value}))
            kept[name] = value
        except MetadataError as error:
            wrong.append(error)
    if not wrong:  # each field is valid by itself, so two have the same name
        return [whole], None
    if {name.lower() for name in document.keys() - kept.keys()} & _NEEDED:
        return wrong, None
    try:
        return wrong, TableMetadata.parse(to_json(kept))
    except MetadataError as error:
        return [*wrong, error], None


def _unknown(document: dict[str, Any], report: partial[LintFinding]) -> Iterator[LintFinding]:
    lower = {name.lower(): value for name, value in document.items()}
    properties = lower.get("fileformattypeproperties")
    for fields, known in ((document, _FIELDS), (properties, PROPERTIES)):
        words = {name.lower(): name for name in known}
        for name in fields if isinstance(fields, dict) else ():
            if name.lower() in words:
                continue
            near = difflib.get_close_matches(name.lower(), words, n=1)
            fix = (
                f"Write {words[near[0]]} if this is intended, or remove the field." if near else ""
            )
            text = f"{METADATA} has a field {name!r}, which is ignored."
            yield report("metadata-unknown", text, fix=fix)


_STAGED = timedelta(days=1)
_UNFINISHED = re.compile(r"(\.(tmp|temp|part|partial|filepart|crdownload)|~)\Z", re.IGNORECASE)
# Half a number, or an extension of data files.
_NEARLY = re.compile(r"[0-9]{10}|\.(parquet|csv|tsv|psv)(\.|\s*\Z)", re.IGNORECASE)
_HELD_BACK = re.compile(r"_.*([0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.I)


def looks_like_data(name: str) -> bool:
    """Return whether a file probably contains rows, by its name."""
    return file_number(name) is not None or bool(_NEARLY.search(name))


def lint_names(
    table: TableName, listing: Listing, strategy: str, now: datetime
) -> tuple[list[LintFinding], Folder]:
    """Check the names of a folder's files.

    Returns:
        The findings, and the folder with the files that have a valid number; in a folder that is
        ordered by time, there are none.
    """
    report = partial(finding, table=str(table))
    findings = []
    numbered: dict[int, Entry] = {}
    for name in listing.folders:
        if not name.startswith(("_", ".")):
            findings.append(report("folder-nested", f"{name!r} is a folder.", file=name))
    for entry in listing.files:
        name = entry.name
        staged = looks_like_data(name) or _HELD_BACK.match(name) is not None
        if name.startswith("_") and staged and now - entry.modified > _STAGED:
            text = f"The file has been staged since {_utc(entry.modified)}."
            findings.append(report("file-abandoned", text, file=name))
        if name.startswith(("_", ".")):
            continue
        number = file_number(name)
        if strategy == BY_TIME or name.lower() == METADATA.lstrip("_"):
            continue  # any name is valid, and metadata has its own rule
        if _UNFINISHED.search(name):
            findings.append(report("file-temporary", f"{name!r} looks unfinished.", file=name))
        elif number is None and looks_like_data(name):
            text = f"{name!r} is not numbered with 20 digits."
            findings.append(report("file-name", text, file=name))
        elif number is None:
            text = f"{name!r} is not part of the format."
            findings.append(report("file-unexpected", text, file=name))
        elif number in numbered:
            text = f"{name} and {numbered[number].name} have the same number."
            findings.append(report("number-twice", text, file=name))
        else:
            try:
                numbered |= by_number(table, Listing((), (entry,))).numbered
            except SequenceError as error:
                findings.append(report("number-range", error.message, file=name))
    return findings, Folder(table, numbered, listing)


def lint_sequence(folder: Folder, last: int, skip: Collection[int] = ()) -> Iterator[LintFinding]:
    """Check that no number is missing.

    Args:
        folder: the files by number.
        last: the last applied number.
        skip: the numbers that an operator has skipped; their files need not exist.
    """
    report = partial(finding, table=str(folder.table))
    if last and not any(number >= last for number in folder.numbered):
        text = f"File {last}, the last applied one, is missing in the folder."
        yield report("number-lost", text, file=file_name(last))
    pending = sorted(number for number in folder.numbered if number > last)
    # The oldest time of each file and those behind it: since then they have been waiting.
    waiting = list(accumulate((folder.numbered[n].modified for n in reversed(pending)), min))
    before = last
    most = max(pending, default=0)
    for number in sorted({*pending, *(one for one in skip if last < one < most)}):
        if number > before + 1:
            one = number == before + 2
            missing = f"File {number - 1} is" if one else f"Files {before + 1} to {number - 1} are"
            place = bisect_left(pending, number)
            files = len(pending) - place
            behind = "1 file has" if files == 1 else f"{files:,} files have"
            text = f"{missing} missing. {behind} been waiting since {_utc(waiting[-1 - place])}."
            yield report("number-gap", text, file=file_name(before + 1))
        before = number


def lint_times(folder: Folder, last: int) -> Iterator[LintFinding]:
    """Check that in a folder ordered by time no new file is older than the last applied one."""
    applied = folder.numbered.get(last)
    for number, entry in sorted(folder.numbered.items()):
        if applied and number > last and entry.modified < applied.modified:
            text = (
                f"The file was modified at {_utc(entry.modified)}, before the last applied one, "
                f"{applied.name}, at {_utc(applied.modified)}."
            )
            yield finding("file-late", text, table=str(folder.table), file=entry.name)


def _utc(when: datetime) -> str:
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")
