"""What a mirrored table is made with: its properties, and its columns after a batch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from mirrorlake.delta.create import OWN_TABLE, mapping_property
from mirrorlake.delta.snapshot import FEED, Snapshot
from mirrorlake.errors import MetadataError, SchemaError
from mirrorlake.landing.check import FileFacts
from mirrorlake.landing.identity import Identity
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.landing.types import fits, widened
from mirrorlake.names import METADATA

KEYS_PROPERTY = "mirrorlake.keys"
INCARNATION_PROPERTY = "mirrorlake.incarnation"
VIEW_PROPERTY = "mirrorlake.view"
_FEED_RESTS = "mirrorlake.feedRests"  # switched off by the mirror, which switches it on again


def is_stale_incarnation(snapshot: Snapshot | None, identity: Identity) -> bool:
    """Whether a table was filled from, or made for, an earlier incarnation of its folder."""
    if snapshot is None or identity.app_id in snapshot.txns:
        return False
    made_for = snapshot.properties.get(INCARNATION_PROPERTY)
    return bool(snapshot.txns) or made_for != identity.incarnation


def creation_properties(metadata: TableMetadata, incarnation: str) -> dict[str, str]:
    """What version 0 is created with, so that feed and row ids cover everything."""
    return OWN_TABLE | {INCARNATION_PROPERTY: incarnation} | keys_property(metadata)


def keys_property(metadata: TableMetadata) -> dict[str, str]:
    """The keys as a JSON list."""
    return {KEYS_PROPERTY: json.dumps(list(metadata.keys), ensure_ascii=False)}


def declared_keys(properties: dict[str, str]) -> tuple[str, ...]:
    """The key columns that a table's properties declare."""
    return tuple(json.loads(properties.get(KEYS_PROPERTY, "[]")))


def suspend_feed(
    known: dict[str, str], before: dict[str, str], after: dict[str, str]
) -> dict[str, str]:
    """What to set before a table is replaced by one of other columns; empty where nothing is.

    With column mapping Delta refuses to drop columns and write rows in one commit while the feed is
    on. No feed can be read across that commit anyway.

    Args:
        known: the table's properties.
        before: its columns with their types.
        after: the columns it will have.
    """
    mapped = known.get("delta.columnMapping.mode", "none") != "none" or mapping_property(after)
    drops = any(after.get(name) != kind for name, kind in before.items())
    if mapped and drops and known.get(FEED) == "true":
        return {FEED: "false", _FEED_RESTS: "true"}
    return {}


def reenable_feed(known: dict[str, str]) -> dict[str, str]:
    """What to set after such a commit."""
    return {FEED: "true", _FEED_RESTS: "false"} if known.get(_FEED_RESTS) == "true" else {}


def retention_properties(log_days: int | None, feed_days: int | None) -> dict[str, str]:
    """How long the log reaches back, and removed files with the feed; None leaves Delta's own."""
    found = {}
    if log_days is not None:
        found["delta.logRetentionDuration"] = f"interval {int(log_days)} days"
    if feed_days is not None:
        found["delta.deletedFileRetentionDuration"] = f"interval {int(feed_days)} days"
    return found


@dataclass(frozen=True)
class Target:
    """The columns of a table after a batch.

    Attributes:
        columns: name to type, the table's own first; types as Delta names them.
        added: the names among them that the table does not have yet.
        widened: those that the table has with a narrower type.
    """

    columns: dict[str, str]
    added: tuple[str, ...]
    widened: tuple[str, ...] = ()

    @property
    def evolved(self) -> bool:
        """Whether the table's schema changes with the batch."""
        return bool(self.added or self.widened)

    def name_of(self, column: str) -> str:
        """The table's spelling of a column, which is found without regard to case."""
        return next(name for name in self.columns if name.lower() == column.lower())


def plan_schema(
    table: dict[str, str],
    files: Iterable[FileFacts],
    *,
    declared: dict[str, str] | None = None,
    widen: bool = False,
) -> Target:
    """The union of the table's columns and the files'.

    A column that has only NULLs so far has no type yet and is left out until it has one.

    Args:
        table: the table's columns with their types, as Delta names them.
        files: what is to be applied, in order.
        declared: the columns that the folder's metadata declare.
        widen: whether a column of the table may get a wider type that holds all values, old and
            new; otherwise that is an error like any other change of type.

    Raises:
        SchemaError: a file's column doesn't fit the type that the table or an earlier file gave it;
            or no column has a type at all.
    """
    columns = dict(table)
    spelling = {name.lower(): name for name in columns}
    for column, wanted in (declared or {}).items():
        known = columns.setdefault(spelling.setdefault(column.lower(), column), wanted)
        if not (fits(wanted, known) or fits(known, wanted)):
            raise SchemaError(
                f"Column {column!r} is declared as {wanted}, but the table has {known}.",
                file=METADATA,
                column=column,
                hint="declare it as it was, or delete the table's folder and publish it again.",
            )
    wide: dict[str, str] = {}
    last: FileFacts | None = None
    for file in files:
        if file.skipped is not None:
            continue
        last = file
        for column, kind in file.columns.items():
            if kind.table == "void":
                continue
            name = spelling.setdefault(column.lower(), column)
            known = columns.setdefault(name, kind.table)
            if fits(kind.table, known):
                continue
            if name not in table and fits(known, kind.table):
                columns[name] = kind.table  # not in the table yet: the wider of two files wins
                continue
            wider = widened(known, kind.table)
            if widen and wider is not None:
                columns[name] = wider
                if name in table and wider != table[name]:
                    wide[name] = wider
                continue
            raise SchemaError(
                f"Column {name!r} is {kind.table}, but the table has {known}.",
                file=file.name,
                column=name,
                hint="delete the table's folder and publish it again with the new type"
                + ("." if wider is None else ", or mirror with --widen."),
            )
    if last is not None and not columns:
        raise SchemaError(
            "All columns have only NULLs so far, so that none has a type.",
            file=last.name,
            hint="publish a row with values, or give the columns types.",
        )
    added = tuple(name for name in columns if name not in table)
    return Target(columns, added, tuple(wide))


def check_keys_known(keys: tuple[str, ...], target: Target) -> tuple[str, ...]:
    """The keys in the table's spelling.

    Raises:
        MetadataError: a key is no column of the table.
    """
    lower = {name.lower() for name in target.columns}
    for key in keys:
        if key.lower() not in lower:
            raise MetadataError(
                f"The table does not have the key column {key!r}.", file=METADATA, column=key
            )
    return tuple(target.name_of(key) for key in keys)
