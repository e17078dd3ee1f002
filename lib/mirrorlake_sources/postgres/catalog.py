"""What the server's catalogue says of a table, and what must be altered before it can be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from mirrorlake.errors import MirrorlakeError, SourceError
from mirrorlake.names import TableName
from mirrorlake_sources.postgres.connect import ident
from mirrorlake_sources.postgres.types import ColumnType, column_type

Connection = psycopg.Connection[tuple[Any, ...]]

_TABLE = """
SELECT c.oid, c.relkind::text, c.relpersistence::text, c.relreplident::text,
       has_table_privilege(c.oid, 'SELECT')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s"""
_COLUMNS = """
SELECT a.attnum, a.attname::text, a.atttypid::int8, a.atttypmod, a.attstorage::text, a.atthasmissing
FROM pg_attribute a
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum"""
_KEYS = """
SELECT a.attname::text
FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND k.place <= i.indnkeyatts
  AND CASE WHEN %s THEN i.indisreplident ELSE i.indisprimary END
ORDER BY k.place"""
_LEAVES = """
SELECT c.oid, n.nspname::text, c.relname::text, c.relreplident::text,
       pg_relation_size(c.oid) / current_setting('block_size')::int8,
       coalesce(pg_relation_filenode(c.oid), 0)::int8
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN (SELECT relid FROM pg_partition_tree(%s) WHERE isleaf UNION SELECT %s)
  AND c.relkind = 'r'
ORDER BY c.oid"""
_BASE = "SELECT typtype::text, typbasetype::int8, typtypmod FROM pg_type WHERE oid = %s"


@dataclass(frozen=True)
class Column:
    """A column, by the number that a rename doesn't change."""

    number: int | None
    name: str
    oid: int
    typmod: int
    kind: ColumnType
    toastable: bool = False
    has_missing: bool = False

    def document(self) -> list[Any]:
        """As a position keeps it."""
        return [self.number, self.name, self.oid, self.typmod]


@dataclass(frozen=True)
class Leaf:
    """A table that holds rows: itself, or a partition."""

    schema: str
    name: str
    identity: str
    pages: int

    @property
    def quoted(self) -> str:
        """Its name for a statement."""
        return ident(self.schema, self.name)


@dataclass(frozen=True)
class PgTable:
    """A table of the server.

    Attributes:
        relid: its oid, which a rename doesn't change.
        keys: by which columns the stream tells rows apart; empty: inserts only.
        filenodes: changes when the table's files are written anew.
    """

    table: TableName
    relid: int
    identity: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]
    leaves: tuple[Leaf, ...]
    filenodes: str

    @property
    def schema(self) -> str:
        """The server's schema."""
        return self.table.schema or "public"

    @property
    def quoted(self) -> str:
        """Its name for a statement."""
        return ident(self.schema, self.table.name)

    def facts(self) -> dict[str, Any]:
        """What a position keeps of the table, to notice later that it was altered."""
        columns = [column.document() for column in self.columns]
        return {"relid": self.relid, "columns": columns, "filenodes": self.filenodes}


class Catalogue:
    """The tables of one database as they are now.

    Args:
        connection: for queries.
        as_text: columns to land as text, as `(table, column)`.
    """

    def __init__(self, connection: Connection, as_text: frozenset[tuple[TableName, str]]) -> None:
        self._connection = connection
        self._as_text = as_text
        self._bases: dict[int, tuple[int, int] | None] = {}

    def table(self, table: TableName) -> PgTable:
        """A table.

        Raises:
            SourceError: there is none of that name, or it can't be read.
        """
        found = self._connection.execute(_TABLE, (table.schema or "public", table.name)).fetchone()
        if found is None:
            raise SourceError(f"There is no table {table} in the database.", hint="check --tables.")
        relid, kind, persistence, identity, readable = found
        quoted = ident(table.schema or "public", table.name)
        if kind not in ("r", "p") or persistence != "p":
            raise SourceError(
                f"{table} is a view, or a foreign, temporary or unlogged table.",
                hint="only permanent tables have a stream of changes.",
            )
        if not readable:
            user = self._connection.info.user
            hint = f"GRANT SELECT ON {quoted} TO {ident(user)};"
            raise SourceError(f"The role {user} can't read {table}.", hint=hint)
        leaves = self._connection.execute(_LEAVES, (relid, relid)).fetchall()
        keys = self._connection.execute(_KEYS, (relid, identity == "i")).fetchall()
        return PgTable(
            table,
            relid,
            identity,
            self.columns(table, relid),
            tuple(name for (name,) in keys),
            tuple(Leaf(schema, name, kind, pages) for _, schema, name, kind, pages, _ in leaves),
            ",".join(str(node) for *_, node in leaves[:1000]),
        )

    def columns(self, table: TableName, relid: int) -> tuple[Column, ...]:
        """A table's columns; those that the server computes are not part of its stream."""
        rows = self._connection.execute(_COLUMNS, (relid,)).fetchall()
        return tuple(
            Column(
                number,
                name,
                oid,
                typmod,
                self.kind(table, name, oid, typmod),
                storage != "p",
                missing,
            )
            for number, name, oid, typmod, storage, missing in rows
        )

    def kind(self, table: TableName, name: str, oid: int, typmod: int) -> ColumnType:
        """What a column becomes; of a domain, what its base type becomes."""
        while (base := self._base(oid)) is not None:
            oid, typmod = base[0], base[1] if typmod == -1 else typmod
        return column_type(oid, typmod, as_text=(table, name) in self._as_text)

    def _base(self, oid: int) -> tuple[int, int] | None:
        if oid not in self._bases:
            found = self._connection.execute(_BASE, (oid,)).fetchone()
            domain = found is not None and found[0] == "d"
            self._bases[oid] = (found[1], found[2]) if domain and found else None
        return self._bases[oid]


def problem_of(table: PgTable, *, toast: str) -> MirrorlakeError | None:
    """Why a table's stream would not hold all that is needed, with the statement that helps.

    Args:
        table: as the catalogue has it.
        toast: `refuse`; `lookup` or `keep` if unchanged large values are got in another way.
    """
    if not table.columns:
        return SourceError(f"{table.table} has no columns.")
    if not table.keys:
        return None  # inserts only
    of_leaves = {leaf.quoted: leaf.identity for leaf in table.leaves} or {
        table.quoted: table.identity
    }
    nothing = [name for name, identity in of_leaves.items() if identity == "n"]
    if nothing:
        return SourceError(
            f"{table.table} has REPLICA IDENTITY NOTHING: its changes name no row.",
            hint=" ".join(f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT;" for name in nothing),
        )
    large = [
        column.name
        for column in table.columns
        if column.toastable
        and column.name not in table.keys
        and not (column.kind.oid == 1700 and column.typmod >= 0)
    ]
    partial = [name for name, identity in of_leaves.items() if identity != "f"]
    if large and partial and toast == "refuse":
        statements = " ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL;" for name in partial)
        return SourceError(
            f"{table.table}: an update does not name large values that it leaves alone"
            f" ({', '.join(large[:5])}).",
            hint=f"{statements} Or --toast lookup, which reads them by key, or --toast keep.",
            column=large[0],
        )
    return None
