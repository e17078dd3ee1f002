"""The whole zone: its own files and its folders' names, then table by table. Nothing is written."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from datetime import datetime, timezone

from mirrorlake.errors import FormatError
from mirrorlake.landing.zone import BadFolder, find_tables, no_folder
from mirrorlake.lint.folder import looks_like_data
from mirrorlake.lint.rules import LintFinding, LintReport, finding
from mirrorlake.lint.table import FileListener, TableLint
from mirrorlake.names import METADATA, PARTNER_EVENTS, SCHEMA_SUFFIX, ZONE, TableName
from mirrorlake.storage import Listing, Storage

_STAGING = "_scratchPad"  # the format's own place for it
_NOTHING = Listing((), ())


def lint_zone(
    storage: Storage,
    only: TableName | None = None,
    *,
    on_file: FileListener = lambda _table, _done, _total: None,
) -> LintReport:
    """Checks a landing zone by all rules of `rules.py`.

    Args:
        storage: the lake's files; none of them is changed.
        only: a single table; by default the whole zone.
        on_file: is called after every data file that was read.

    Raises:
        TableNotFoundError: the single table has no folder in the zone.
    """
    if only is not None and storage.list(only.folder) == _NOTHING and not _has(storage, only):
        raise no_folder(only)
    now = datetime.now(timezone.utc)
    tables = list(find_tables(storage))
    findings = [] if only else list(_lint_root(storage))
    findings += [
        found
        for found in _lint_folders(storage, tables)
        if only is None or found.table == str(only)
    ]
    # A folder that can't be a table has nothing more to look at.
    good = [t for t in tables if isinstance(t, TableName) and only in (None, t)]
    files = 0
    for table in good:
        lint = TableLint(storage, table, now, on_file)
        try:
            for found in lint.run():
                findings.append(found)
        except (
            FormatError,
            OSError,
            ValueError,
        ) as error:  # the other tables are looked at all the same
            text = f"Not readable: {error}."
            findings.append(finding("folder-unreadable", text, table=str(table)))
        files += lint.files
    return LintReport(tuple(findings), len(good), files)


def _has(storage: Storage, table: TableName) -> bool:
    """Whether a table has a folder, which may be empty where there are folders."""
    outer, _, name = table.folder.rpartition("/")
    return name in storage.list(outer).folders


def _lint_root(storage: Storage) -> Iterator[LintFinding]:
    """What lies in the zone, and in its schemas, beside the tables."""
    zone = storage.list(ZONE)
    if zone == _NOTHING:
        yield finding("zone-missing", f"There is nothing in {ZONE}.")
        return
    yield from _lint_partner(storage, zone)
    yield from _lint_outside(storage, "", zone)
    for folder in zone.folders:
        if folder.endswith(SCHEMA_SUFFIX) and not folder.startswith("_"):
            yield from _lint_outside(storage, f"{folder}/", storage.list(f"{ZONE}/{folder}"))


def _lint_outside(storage: Storage, inside: str, listing: Listing) -> Iterator[LintFinding]:
    for entry in listing.files:
        file = f"{inside}{entry.name}"
        if entry.name == METADATA or (
            looks_like_data(entry.name) and not entry.name.startswith(("_", "."))
        ):
            yield finding("file-misplaced", f"{file!r} lies in no table's folder.", file=file)
        elif not entry.name.startswith(("_", ".")):
            yield finding("file-unexpected", f"{file!r} is not part of the format.", file=file)
    for folder in listing.folders:
        if not folder.startswith("_") or folder == _STAGING:
            continue
        files = storage.list(f"{ZONE}/{inside}{folder}").files
        held = [e for e in files if e.name == METADATA or looks_like_data(e.name)]
        if held:
            text = f"{folder!r} is ignored, with {held[0].name} in it."
            yield finding("folder-hidden", text, table=f"{inside}{folder}")


def _lint_partner(storage: Storage, zone: Listing) -> Iterator[LintFinding]:
    if zone.file(PARTNER_EVENTS) is None:
        yield finding("partner-missing", f"There is no {PARTNER_EVENTS}.", file=PARTNER_EVENTS)
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
        f"{name} is missing or not text"
        for name, value in (
            ("partnerName", outer.get("partnername")),
            ("sourceInfo.sourceType", inner.get("sourcetype")),
        )
        if not isinstance(value, str) or not value
    ]
    if not isinstance(inner.get("sourceversion", ""), (str, type(None))):
        problems.append("sourceInfo.sourceVersion is not text")
    if problems:
        yield finding("partner-invalid", f"{'; '.join(problems)}.", file=PARTNER_EVENTS)


def _fields(document: object) -> dict[str, object]:
    if not isinstance(document, dict):
        return {}
    return {str(name).lower(): value for name, value in document.items()}


def _lint_folders(storage: Storage, tables: list[TableName | BadFolder]) -> Iterator[LintFinding]:
    """The folders' names, each by itself and beside the others."""
    schemas = [
        folder.removesuffix(SCHEMA_SUFFIX)
        for folder in storage.list(ZONE).folders
        if folder.endswith(SCHEMA_SUFFIX) and not folder.startswith("_")
    ]
    met: dict[tuple[str | None, str], str] = {}
    for schema in schemas:
        met.setdefault((None, _alike(schema)), f"{schema}{SCHEMA_SUFFIX}")
    for table in tables:
        if isinstance(table, BadFolder):
            place = table.folder.removeprefix(f"{ZONE}/")
            yield finding("folder-name", table.error.message, table=place)
            continue
        if table.schema is None and table.name in schemas:
            text = f"The table {table} is named like the schema {table.name}."
            yield finding("folder-clash", text, table=str(table))
            continue
        other = met.setdefault((table.schema, _alike(table.name)), table.name)
        if other != table.name:
            text = f"{table.name!r} and {other!r} differ at most by case."
            yield finding("folder-case", text, table=str(table))
    alike: dict[str, str] = {}
    for schema in schemas:
        other = alike.setdefault(_alike(schema), schema)
        if other != schema:
            text = f"The schemas {schema!r} and {other!r} differ at most by case."
            yield finding("folder-case", text, table=f"{schema}{SCHEMA_SUFFIX}")


def _alike(name: str) -> str:
    """What names have in common that a file system or a query may take for one."""
    return unicodedata.normalize("NFC", name).casefold()
