"""Tables of a PostgreSQL server as its catalog describes them: names, keys, columns, types.

Numbers, texts, bytes, dates and timestamps keep their types. Other types are published as the text
that psql prints. `docs/sources.md` lists the types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from mirrorlake.errors import MirrorlakeError, SchemaError, SourceError, UsageError
from mirrorlake.names import TableName
from mirrorlake_sources.postgres.connection import ident

_TYPES = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),  # oid
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
}
_OID, _NUMERIC = 26, 1700
_PLAIN_TEXT = (
    18,
    19,
    25,
    1042,
    1043,
)  # "char", name, text, char(n), varchar: read without conversion
_MOST_DIGITS = 38
_DAY_US = 86_400_000_000
# The limits that all Delta readers support; they represent PostgreSQL's infinity.
_FIRST, _LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
_TIMESTAMP = re.compile(
    r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?"
)
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


def lake_name(table: TableName) -> TableName:
    """Return the table's name in the lake, where tables of `public` have no schema."""
    return TableName(None, table.name) if table.schema == "public" else table


def parse_tables(names: Collection[str]) -> list[TableName]:
    """Return the tables that the user named to be loaded again."""
    return [lake_name(TableName.parse(name)) for name in names]


def column_of(name: str) -> tuple[TableName, str]:
    """Return the table and the column of `table.column`.

    Raises:
        UsageError: the name does not have this form.
    """
    table, point, column = name.rpartition(".")
    if not point:
        raise UsageError(f"{name!r} is not a column.", hint="write table.column.")
    return lake_name(TableName.parse(table)), column


@dataclass(frozen=True)
class ColumnType:
    """The published type of a column.

    Attributes:
        oid: the server's type; for a domain its base type.
        arrow: the published type.
    """

    oid: int
    arrow: pa.DataType

    def selected(self, column: str) -> str:
        """Return the expression with which a snapshot reads a column, given its quoted name."""
        if self.oid in (1082, 1114, 1184) and not pa.types.is_string(self.arrow):
            name = {1082: "date", 1114: "timestamp", 1184: "timestamptz"}[self.oid]
            first, last = (_FIRST[:10], _LAST[:10]) if self.oid == 1082 else (_FIRST, _LAST)
            return (
                f"CASE WHEN isfinite({column}) THEN {column} WHEN {column} > '2000-01-01' "
                f"THEN '{last}'::{name} WHEN {column} < '2000-01-01' THEN '{first}'::{name} END"
            )
        if self.oid == _OID and not pa.types.is_string(self.arrow):
            return f"{column}::bigint"
        if pa.types.is_string(self.arrow) and self.oid not in (*_PLAIN_TEXT, _NUMERIC):
            # `concat` prints like psql; a cast to text would pad an inet and trim a char.
            return f"CASE WHEN {column} IS DISTINCT FROM NULL THEN concat({column}) END"
        if pa.types.is_string(self.arrow) and self.oid in (_NUMERIC, 18):
            return f"{column}::text"
        return column

    def convert(self, values: pa.Array, column: str) -> pa.Array:
        """Return values that a snapshot has read in the published type.

        Raises:
            SchemaError: a value can't be converted; names the column.
        """
        if values.type == self.arrow:
            return values
        if pa.types.is_string(values.type):
            return self.parsed(values, column)
        return self._converted(values, column, lambda found: found.cast(self.arrow))

    def parsed(self, texts: pa.Array, column: str) -> pa.Array:
        """Return values that the server has printed in the published type; raises as `convert`."""
        return self._converted(
            texts, column, lambda found: self._from_text(found.cast(pa.string()))
        )

    def _converted(
        self, values: pa.Array, column: str, cast: Callable[[pa.Array], pa.Array]
    ) -> pa.Array:
        try:
            return cast(values)
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise SchemaError(
                f"A value of {column!r} can't be converted to {self.arrow}: {error}.",
                column=column,
                hint=f"publish the column as text (text, --text TABLE.{column}), and load the table"
                " again (reseed, --reseed TABLE).",
            ) from error

    def _from_text(self, texts: pa.Array) -> pa.Array:
        arrow = self.arrow
        if pa.types.is_string(arrow):
            return texts
        if pa.types.is_boolean(arrow):
            return pc.equal(texts, "t")
        if pa.types.is_binary(arrow):
            return pa.array(
                [None if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()],
                arrow,
            )
        if pa.types.is_date(arrow) or pa.types.is_timestamp(arrow):
            try:
                return texts.cast(arrow)
            except pa.ArrowInvalid:  # infinity, years before 1 and after 9999
                return self._from_unusual(texts)
        return texts.cast(arrow)

    def _from_unusual(self, texts: pa.Array) -> pa.Array:
        days = pa.types.is_date(self.arrow)
        found = [None if text is None else _microseconds(text) for text in texts.to_pylist()]
        if days:
            return pa.array(
                [None if us is None else us // _DAY_US for us in found], pa.int32()
            ).cast(self.arrow)
        return pa.array(found, pa.int64()).cast(self.arrow)


def column_type(oid: int, typmod: int, *, as_text: bool = False) -> ColumnType:
    """Return the published type of a column.

    Args:
        oid: the column's type; for a domain its base type.
        typmod: the type's modifier; -1 for none.
        as_text: publish the text that psql prints.
    """
    if as_text:
        return ColumnType(oid, pa.string())
    if oid == _NUMERIC and typmod >= 4:
        precision = (typmod - 4) >> 16 & 0xFFFF
        scale = (typmod - 4 & 0x7FF ^ 1024) - 1024  # 11 bits with a sign
        if precision <= _MOST_DIGITS and 0 <= scale <= precision:
            return ColumnType(oid, pa.decimal128(precision, scale))
    return ColumnType(oid, _TYPES.get(oid, pa.string()))


def _microseconds(text: str) -> int:
    """Return the microseconds since 1970 of a date or timestamp that PostgreSQL prints in UTC."""
    if text in ("infinity", "-infinity"):
        text = _LAST if text == "infinity" else _FIRST
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a date or timestamp")
    year = 1 - int(match[1]) if match[8] else int(match[1])
    days = _days(year, int(match[2]), int(match[3]))
    hours, minutes, seconds = (int(part or 0) for part in match.group(4, 5, 6))
    fraction = int((match[7] or "").ljust(6, "0"))
    return days * _DAY_US + ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + fraction


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970 in the proleptic Gregorian calendar, for any year."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@dataclass(frozen=True)
class Column:
    """A column, identified by its number, which a rename does not change."""

    number: int | None
    name: str
    oid: int
    typmod: int
    kind: ColumnType
    toastable: bool = False
    has_missing: bool = False

    def document(self) -> list[Any]:
        """Return the column as a position stores it."""
        return [self.number, self.name, self.oid, self.typmod]


@dataclass(frozen=True)
class Leaf:
    """A table with rows: an ordinary table, or a partition."""

    schema: str
    name: str
    identity: str
    pages: int

    @property
    def quoted(self) -> str:
        """The name for a statement."""
        return ident(self.schema, self.name)


@dataclass(frozen=True)
class PgTable:
    """A table of the server.

    Attributes:
        table: its name in the lake.
        relid: its oid, which a rename does not change.
        identity: its replica identity.
        columns: its columns.
        keys: the columns that identify rows in the stream; empty if only inserts are published.
        leaves: the table itself, or its partitions.
        filenodes: changes when the server rewrites the table's files.
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
        """The schema on the server."""
        return self.table.schema or "public"

    @property
    def quoted(self) -> str:
        """The name for a statement."""
        return ident(self.schema, self.table.name)

    def facts(self) -> dict[str, Any]:
        """Return the facts that a position stores to detect alterations of the table."""
        columns = [column.document() for column in self.columns]
        return {"relid": self.relid, "columns": columns, "filenodes": self.filenodes}


class Catalog:
    """The current tables of one database.

    Args:
        connection: for queries.
        as_text: columns to publish as text, as `(table, column)`.
    """

    def __init__(self, connection: Connection, as_text: frozenset[tuple[TableName, str]]) -> None:
        self._connection = connection
        self._as_text = as_text
        self._bases: dict[int, tuple[int, int] | None] = {}

    def table(self, table: TableName) -> PgTable:
        """Return a table.

        Raises:
            SourceError: the table does not exist, or can't be read.
        """
        found = self._connection.execute(_TABLE, (table.schema or "public", table.name)).fetchone()
        if found is None:
            raise SourceError(f"There is no table {table} in the database.", hint="check tables.")
        relid, kind, persistence, identity, readable = found
        quoted = ident(table.schema or "public", table.name)
        if kind not in ("r", "p") or persistence != "p":
            raise SourceError(
                f"{table} is a view, or a foreign, temporary or unlogged table.",
                hint="name a permanent table; only permanent tables have a stream of changes.",
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
        """Return a table's columns without generated ones, which the stream does not contain."""
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
        """Return the published type of a column; a domain has that of its base type."""
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
    """Return the reason why a table's stream lacks data, with the statement that fixes it, or None.

    Args:
        table: as the catalog describes it.
        toast: `refuse`, or `lookup` or `keep` if unchanged large values are obtained in another
            way.
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
            f"{table.table} has REPLICA IDENTITY NOTHING: its changes do not identify rows.",
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
            f"{table.table}: updates that do not change a large value would not contain it"
            f" ({', '.join(large[:5])}).",
            hint="set toast (--toast) to lookup, which reads such values by key, or to keep; or"
            f" let the tables' owner run: {statements}",
            column=large[0],
        )
    return None
