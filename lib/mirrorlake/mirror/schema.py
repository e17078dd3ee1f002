"""The table's schema after a batch: its columns, then those the batch adds; never fewer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirrorlake.errors import MetadataError, SchemaError
from mirrorlake.landing.check import FileFacts
from mirrorlake.landing.types import fits, widened
from mirrorlake.names import METADATA


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
                hint="declare it as it was, or delete the table's folder and publish it anew.",
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
                hint="delete the table's folder and publish it anew with the new type"
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
                f"Key column {key!r} is no column of the table.", file=METADATA, column=key
            )
    return tuple(target.name_of(key) for key in keys)
