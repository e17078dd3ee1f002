"""What an ALTER TABLE means for a table that is mirrored: it goes on, is loaded again, or stops."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from mirrorlake_sources.postgres.catalog import PgTable
from mirrorlake_sources.postgres.messages import Relation

_TEXT, _VARCHAR = 25, 1043


class Altered(Enum):
    """What follows from an alteration."""

    NO = "nothing"
    GOES_ON = "a column was added or dropped"
    LOAD_AGAIN = "a column was added with a value for the rows that were there"
    RENAMED = "a column was renamed"
    TYPE = "a column's type was changed"
    TABLE = "the table was renamed"
    KEY = "its key was changed"


@dataclass(frozen=True)
class Kept:
    """A table as it was when its last rows were published."""

    columns: tuple[tuple[int | None, str, int, int], ...]
    filenodes: str

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Kept:
        """From a position's facts."""
        columns = tuple((n, name, oid, mod) for n, name, oid, mod in facts["columns"])
        return cls(columns, facts["filenodes"])

    def differs(self, relation: Relation) -> bool:
        """Whether the stream's rows have other columns now."""
        return [column[1:] for column in self.columns] != list(relation.columns)


def compare(kept: Kept, relation: Relation, before: PgTable, now: PgTable | None) -> Altered:
    """What has become of a table.

    Args:
        kept: as it was when its last rows were published.
        relation: as its next rows in the stream are.
        before: as the catalogue had it at the start.
        now: as the catalogue has it, which may be later still; None if it is gone.
    """
    if (before.schema, before.table.name) != (relation.schema, relation.name):
        return Altered.TABLE
    if now is not None and now.relid != before.relid:
        now = None  # dropped since, and made again: the catalogue says nothing of these rows
    if now is not None and now.keys != before.keys:
        return Altered.KEY
    numbers = {column.name: column.number for column in now.columns} if now else {}
    old = {name: (number, oid, mod) for number, name, oid, mod in kept.columns}
    new = {name: (oid, mod) for name, oid, mod in relation.columns}
    added, dropped = new.keys() - old.keys(), old.keys() - new.keys()
    if not new.keys() >= set(before.keys):
        return Altered.KEY
    by_number = {number: name for number, name, _, _ in kept.columns}
    known = (numbers.get(name) for name in added)
    if any(by_number[number] in dropped for number in known if number in by_number):
        return Altered.RENAMED
    for name in new.keys() & old.keys():
        number, oid, mod = old[name]
        if number is not None and numbers.get(name, number) != number:
            return Altered.LOAD_AGAIN  # dropped and added again: old rows have other values now
        if (oid, mod) != new[name] and {oid, new[name][0]} - {_TEXT, _VARCHAR}:
            return Altered.TYPE
    if added and (now is None or now.filenodes != kept.filenodes):
        return Altered.LOAD_AGAIN  # the server wrote the table anew, maybe to fill the column
    missing = {column.name for column in now.columns if column.has_missing} if now else set()
    if added & missing:
        return Altered.LOAD_AGAIN
    return Altered.GOES_ON if added or dropped else Altered.NO
