"""Compare tables of a lake with their PostgreSQL database at one point, while both change.

The point is the position of an exported snapshot: the snapshot has all commits before this
position. The server computes row counts and checksums of key ranges in the snapshot. Spark computes
them for the lake, see `PublishedRows`. Single keys are read only for ranges that differ.

Both sides compute the digests of `digest_values`, and print single rows as the texts of
`canonical_texts`. `_digest` and `canonical_text` return the SQL expressions of these.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta, timezone
from queue import SimpleQueue
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from mirrorlake.errors import (
    BusyError,
    CheckError,
    MirrorlakeError,
    SourceError,
    TableNotFoundError,
)
from mirrorlake.landing.digests import NO_ROWS, Compared, Sums, add_sums
from mirrorlake.names import TableName, split_names
from mirrorlake.results import Count, Result, TextTable, counted
from mirrorlake_sources.engine import run_source
from mirrorlake_sources.postgres.catalog import (
    Catalog,
    Column,
    Connection,
    PgTable,
    column_of,
    parse_tables,
)
from mirrorlake_sources.postgres.connection import Server, quoted
from mirrorlake_sources.postgres.expressions import (
    canonical_text,
    check_digests,
    digest_of,
    hashed_bytes,
    is_ordered,
    joined_texts,
    range_value,
)
from mirrorlake_sources.postgres.slot import (
    Part,
    Slot,
    exported_snapshot,
    parse_lsn,
    parts_of,
    show_lsn,
)
from mirrorlake_sources.postgres.source import PostgresSource, require_dsn
from mirrorlake_sources.source import Position, position_in, read_progress

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.mirror.reconcile import PublishedRows

_READERS = 2
_ROUNDS = 3
_RANGES = 512
_SAMPLED = 500  # pages from which the starts of ranges are chosen
_MOST = 20  # rows of a table that are reported
_AT_ONCE = 200_000  # rows whose keys are compared at once
_PAUSE = 0.2  # seconds between two looks at the slot
_PROGRESS = (
    "SELECT active, confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
)
Row = dict[str, str | None]


@dataclass(frozen=True)
class DifferentRange:
    """A range of keys whose rows differ.

    Attributes:
        column: the key column of the range; None for a table without a key.
        start: the first key of the range; None for the first range.
        end: the first key of the next range; None for the last range.
        source_rows: the number of rows in the database.
        lake_rows: the number of rows in the lake.
    """

    column: str | None
    start: str | None
    end: str | None
    source_rows: int
    lake_rows: int


@dataclass(frozen=True)
class DifferentRow:
    """A key whose rows differ.

    Attributes:
        kind: `missing`, `extra` or `duplicate` in the lake, or `changed`.
        key: the values of the key columns; empty for a table without a key.
        columns: the columns with different values, if both have the row.
        source: the row in the database; None if it has none.
        lake: the row in the lake; None if it has none.
    """

    kind: str
    key: Row
    columns: tuple[str, ...]
    source: Row | None
    lake: Row | None

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value}" for name, value in self.key.items()) or "a row"
        if self.kind != "changed" or not self.source or not self.lake:
            return f"{key}: {self.kind} in the lake: {self.lake or self.source}"
        pairs = (f"{c} is {_or_null(self.source[c])} in the database and" for c in self.columns)
        ours = (_or_null(self.lake[column]) for column in self.columns)
        both = (f"{pair} {value} in the lake" for pair, value in zip(pairs, ours, strict=True))
        return f"{key}: {'; '.join(both)}"


def _or_null(value: str | None) -> str:
    return "NULL" if value is None else repr(value)


@dataclass(frozen=True)
class VerifiedTable:
    """The comparison of one table.

    Attributes:
        table: its name in the lake.
        point: the compared position in the database's log.
        source_rows: the number of rows in the database.
        lake_rows: the number of rows in the lake.
        ranges: the ranges of keys that differ.
        rows: the first rows that differ, at most 20.
        problem: why the table can't be compared; None if it was.
    """

    table: str
    point: str
    source_rows: int = 0
    lake_rows: int = 0
    ranges: tuple[DifferentRange, ...] = ()
    rows: tuple[DifferentRow, ...] = ()
    problem: str | None = None

    @property
    def lines(self) -> list[str]:
        """The problem, or one line per row that differs."""
        found = [self.problem] if self.problem else map(str, self.rows)
        return [f"{self.table}: {line}" for line in found]


@dataclass(frozen=True)
class Verification(Result):
    """The result of comparing tables with their database.

    Attributes:
        tables: one entry per table.
    """

    tables: tuple[VerifiedTable, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether a table differs or can't be compared."""
        return any(one.ranges or one.problem for one in self.tables)

    @property
    def lines(self) -> list[str]:
        """One line per problem and per row that differs."""
        return [line for one in self.tables for line in one.lines]

    def check(self) -> None:
        """Raise an error if a table differs or can't be compared.

        Raises:
            CheckError: with the first difference.
        """
        if self.failed:
            raise CheckError(self.lines[0])

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        return asdict(self)

    def shown(self) -> TextTable:
        """Return one row per table."""
        names = (
            "table",
            "point",
            "rows in database",
            "rows in lake",
            "different ranges",
            "problem",
        )
        rows = (
            (
                *(one.table, one.point, Count(one.source_rows), Count(one.lake_rows)),
                *(len(one.ranges), "".join(one.lines[:1])),
            )
            for one in self.tables
        )
        return TextTable(names, tuple(rows))

    def __repr__(self) -> str:
        equal = sum(not one.ranges and not one.problem for one in self.tables)
        rows = sum(one.source_rows for one in self.tables)
        tables = counted(len(self.tables), "table")
        return f"{equal} of {tables} equal to the database; {counted(rows, 'row')} compared"


def verify_postgres(
    lake: Lake,
    tables: str | Iterable[str],
    dsn: str = "",
    *,
    slot: str = "mirrorlake",
    toast: str = "refuse",
    text: str | Iterable[str] = (),
    timeout: float = 60.0,
) -> Verification:
    """Compare tables with the database at one point, while both change; starts Spark.

    The lake's rows are those of the table and of published files that are not applied yet. If no
    process runs the source, its changes up to the point are published first. This also loads tables
    that were never published.

    Args:
        lake: the lake.
        tables: their names, as a list or separated by commas; `public.t` is `t`.
        dsn: libpq's connection string; if empty, the variable `MIRRORLAKE_DSN`.
        slot: the replication slot of the source.
        toast: as the tables are published, see `PostgresSource`. With `lookup`, published values
            may be newer than the point, so tables that differ are compared up to three times.
        text: the columns that are published as text.
        timeout: how long to wait for a running source to publish all changes up to the point, in
            seconds.

    Returns:
        One entry per table: the row counts, the ranges that differ, and the first 20 rows that
        differ. A table that can't be compared has a `problem`.

    Raises:
        UsageError: no database is named, or an argument is invalid.
        SourceError: the server can't be reached or has no such slot, or the source did not reach
            the point in time.

    Example:
        >>> verify_postgres(lake, ["orders"], "host=db dbname=shop")  # doctest: +SKIP
        1 of 1 table equal to the database; 1,000 rows compared
    """
    place, names = require_dsn(dsn), split_names(tables)
    texts = split_names(text)
    as_text = frozenset(column_of(column) for column in texts)
    PostgresSource(place, names, slot=slot, toast=toast, text=texts)  # check the arguments
    server, found = Server(place), dict[TableName, VerifiedTable]()
    wanted = left = parse_tables(names)
    with server.explained(), closing(server.query()) as sql:
        Slot(sql, slot).check_exists()  # else the source would create it and load all tables
        check_digests(sql)
    for _ in range(_ROUNDS):
        versions = {table: _version(lake, table) for table in left}
        with (
            server.explained(),
            closing(server.query()) as sql,
            _snapshot(server, f"{slot}_{token_hex(3)}") as (lsn, readers),
        ):
            known = Slot(sql, slot)
            # A source removes tables that it does not name from its publications.
            every = dict.fromkeys(map(str, [*wanted, *known.published()]))
            source = PostgresSource(place, every, slot=slot, toast=toast, text=texts)
            errors = _publish_until(lake, sql, source, slot, lsn, timeout)
            name = known.source_name()
            catalog, point = Catalog(readers[0], as_text), Position((lsn, 0))
            for table, version in versions.items():
                try:
                    if str(table) in errors:
                        raise SourceError(errors[str(table)])
                    _check_published(lake, table, name, point)
                    there = _SourceRows(readers, catalog.table(table))
                    one = _compare(lake, there, name, point, version)
                    _check_published(lake, table, name, point)  # it is still the same folder
                except (MirrorlakeError, FileNotFoundError) as error:
                    one = VerifiedTable(str(table), show_lsn(lsn), problem=str(error))
                found[table] = one
        # A table may have been loaded again after the point.
        left = [t for t in left if found[t].problem or (toast == "lookup" and found[t].ranges)]
        if not left:
            break
    return Verification(tuple(found[table] for table in wanted))


def _version(lake: Lake, table: TableName) -> int | None:
    try:
        return lake.table(table).version
    except TableNotFoundError:
        return None  # not mirrored yet


@contextmanager
def _snapshot(server: Server, slot: str) -> Iterator[tuple[int, list[Connection]]]:
    """Yield the position of a snapshot, and connections that read it."""
    with ExitStack() as opened:
        with exported_snapshot(server, slot) as (lsn, name):
            readers = [opened.enter_context(closing(server.query())) for _ in range(_READERS)]
            for reader in readers:
                reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                reader.execute(f"SET TRANSACTION SNAPSHOT {quoted(name)}".encode())
        yield lsn, readers


def _publish_until(
    lake: Lake, sql: Connection, source: PostgresSource, slot: str, lsn: int, timeout: float
) -> dict[str, str]:
    """Wait until all changes before a position are published; publish them if no process does.

    Returns:
        The errors of tables that can't be published, by their names.

    Raises:
        SourceError: the running source did not reach the position in time.
    """
    deadline = time.monotonic() + timeout
    while True:
        active, reached = sql.execute(_PROGRESS, (slot,)).fetchone() or (False, None)
        if reached is not None and parse_lsn(reached) >= lsn:
            return {}
        if not active:
            with suppress(BusyError):  # another process has just started
                report = run_source(lake.storage, source, footer=lake.published_footer)
                return {one.table: one.error for one in report.tables if one.error}
        if time.monotonic() > deadline:
            raise SourceError(
                f"The running source has not published the changes up to {show_lsn(lsn)} within"
                f" {timeout:g} s; it has confirmed {reached}.",
                hint="check with status whether it runs; verify again, or set a longer timeout.",
            )
        time.sleep(_PAUSE)


def _check_published(lake: Lake, table: TableName, source: str, point: Position) -> None:
    """Check that a table's folder begins before the point and is not stopped.

    Raises:
        SourceError: the table is not published, is stopped, or begins after the point.
    """
    progress = read_progress(lake.storage, table, source)
    if progress is None:
        raise SourceError(f"{source} does not publish {table}.", hint="publish the table first.")
    if progress.stopped:
        raise SourceError(f"{table} is stopped: {progress.stopped}")
    if progress.begin > point:
        raise SourceError(
            f"{table} was loaded again or truncated after {show_lsn(point.order[0])}.",
            hint="verify it again.",
        )


class _SourceRows:
    """The rows of a table in the snapshot.

    Args:
        readers: connections that read the snapshot.
        table: the table.

    Attributes:
        table: the table.
        by: the column whose values are divided into ranges; None if the digests are divided.
        starts: the first value of each range but the first: integers, or texts as bytes.
    """

    def __init__(self, readers: list[Connection], table: PgTable) -> None:
        self._readers, self.table = readers, table
        self._keys = [column for column in table.columns if column.name in table.keys]
        self._keys.sort(key=lambda column: table.keys.index(column.name))
        self._digest = digest_of(map(hashed_bytes, table.columns))
        self._pages = sum(leaf.pages for leaf in table.leaves)
        self.by: Column | None = None
        ranges = min(_RANGES, self._pages)
        self.starts: list[Any] = [(n << 64) // ranges - (1 << 63) for n in range(1, ranges)]
        if self._keys:
            self._sample()

    def _sample(self) -> None:
        """Choose the key column with the most different values, and the starts of its ranges."""
        share = min(100.0, 100.0 * _SAMPLED / max(1, self._pages))
        what, rows = ", ".join(map(range_value, self._keys)), list[tuple[Any, ...]]()
        for leaf in self.table.leaves:
            query = f"SELECT {what} FROM ONLY {leaf.quoted} TABLESAMPLE SYSTEM ({share})"
            rows += self._readers[0].execute(query.encode()).fetchall()
        values = [sorted(set(column)) for column in zip(*rows, strict=True)] or [[]]
        most = max(values, key=len)
        self.by = self._keys[values.index(most)]
        step = -(-len(most) // _RANGES) or 1
        self.starts = most[step::step]

    def compared(self) -> Compared:
        """Return how the lake's rows are compared with these."""
        starts = (one.decode() if isinstance(one, bytes) else one for one in self.starts)
        columns = tuple(column.name for column in self.table.columns)
        by = self.by.name if self.by else None
        return Compared(columns, self.table.keys, by, tuple(starts))

    def sums(self) -> dict[int, Sums]:
        """Return rows and checksum of each range."""
        found = self._read("place, count(*), sum(digest)", "GROUP BY place")
        return {place: sums for (place,), sums in _added(found).items()}

    def keys_in(self, places: Collection[int]) -> dict[tuple[int, str], Sums]:
        """Return rows and checksum of each key in some ranges."""
        rest = "WHERE place = ANY(%(wanted)s) GROUP BY place, key"
        found = self._read("place, key, count(*), sum(digest)", rest, list(places))
        return {(place, key.decode()): sums for (place, key), sums in _added(found).items()}

    def texts(self, keys: Collection[str]) -> dict[str, list[str | None]]:
        """Return the canonical texts of one row of each key."""
        wanted = [key.encode() for key in keys]
        found = self._read("key, texts", "WHERE key = ANY(%(wanted)s::bytea[])", wanted)
        return {key.decode(): texts for key, texts in found}

    def _read(self, what: str, rest: str, wanted: list[Any] | None = None) -> list[Any]:
        """Read all parts of the table, as many at once as there are connections."""
        kind = "bigint" if self.by is None or is_ordered(self.by) else "bytea"
        values = self._digest if self.by is None else range_value(self.by)
        key = joined_texts(self._keys) if self._keys else f"({self._digest})::text::bytea"
        texts = ", ".join(map(canonical_text, self.table.columns))
        rows = f"{key} AS key, {self._digest} AS digest, ARRAY[{texts}] AS texts"
        place = f"width_bucket({_escaped(values)}, %(starts)s::{kind}[]) AS place"
        given = {"starts": self.starts, "wanted": wanted}
        free = SimpleQueue[Connection]()
        for reader in self._readers:
            free.put(reader)

        def read(part: Part) -> list[Any]:
            found = _escaped(f"{rows} FROM ONLY {part.table} WHERE {part.where}")
            query = f"SELECT {what} FROM (SELECT {place}, {found}) AS rows {rest}"
            reader = free.get()
            try:
                return reader.execute(query.encode(), given).fetchall()
            finally:
                free.put(reader)

        with ThreadPoolExecutor(len(self._readers)) as pool:
            parts = parts_of(self.table, len(self._readers))
            return [row for rows in pool.map(read, parts) for row in rows]


def _escaped(expression: str) -> str:
    """Return an expression for a statement with parameters."""
    return expression.replace("%", "%%")


def _added(rows: Iterable[Any]) -> dict[tuple[Any, ...], Sums]:
    """Return rows and checksum for each group, added over the parts of the table."""
    found: dict[tuple[Any, ...], Sums] = {}
    for *names, count, total in rows:
        known = found.get(tuple(names), NO_ROWS)
        found[tuple(names)] = add_sums(known, (count, int(total)))
    return found


def _shown(kind: pa.DataType, text: str | None) -> str | None:
    """Return the value of a canonical text in readable form."""
    if text is None:
        return None
    try:
        if pt.is_date(kind):
            return str(date(1970, 1, 1) + timedelta(int(text)))
        if pt.is_timestamp(kind):
            zone = timezone.utc if kind.tz else None
            return str(datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=int(text)))
    except OverflowError:
        return text  # a year that Python does not have
    if pt.is_floating(kind):
        (number,) = struct.unpack("<d", struct.pack("<q", int(text)))
        return f"{number:.9g}" if kind == pa.float32() else repr(number)
    return f"\\x{text}" if pt.is_binary(kind) else text


def _compare(
    lake: Lake, there: _SourceRows, source: str, point: Position, version: int | None
) -> VerifiedTable:
    """Compare the rows of one table at a point."""
    from mirrorlake.mirror.reconcile import PublishedRows

    def is_after(footer: Mapping[bytes, bytes]) -> bool | None:
        position = position_in(footer, source)
        return None if position is None else position > point

    table, compared = there.table, there.compared()
    with ThreadPoolExecutor(1) as pool:  # the server and Spark compute at the same time
        sums = pool.submit(there.sums)
        here = PublishedRows(
            lake.spark, lake.storage, table.table, compared, version=version, is_after=is_after
        )
        found = here.sums(sums.result)
    wanted = sums.result()
    places = [
        place
        for place in sorted({*wanted, *found})
        if wanted.get(place, NO_ROWS) != found.get(place, NO_ROWS)
    ]
    ends, kind = [None, *compared.starts, None], there.by.kind.arrow if there.by else pa.int64()
    shown = [None if end is None else _shown(kind, str(end)) for end in ends]
    ranges = tuple(
        DifferentRange(
            compared.by,
            shown[place],
            shown[place + 1],
            source_rows=wanted.get(place, NO_ROWS)[0],
            lake_rows=found.get(place, NO_ROWS)[0],
        )
        for place in places
    )
    sizes = {place: one.source_rows for place, one in zip(places, ranges, strict=True)}
    rows = _different_rows(there, here, sizes)
    return VerifiedTable(
        str(table.table),
        show_lsn(point.order[0]),
        sum(rows for rows, _ in wanted.values()),
        sum(rows for rows, _ in found.values()),
        ranges,
        rows,
    )


def _different_rows(
    there: _SourceRows, here: PublishedRows, sizes: Mapping[int, int]
) -> tuple[DifferentRow, ...]:
    """Return the first rows that differ; read the keys of only as many ranges as needed.

    Args:
        there: the rows in the database.
        here: the rows in the lake.
        sizes: the ranges that differ, with their number of rows.
    """
    counts: dict[str, tuple[int, int]] = {}
    left = list(sizes)
    while left and len(counts) < _MOST:
        few = [left.pop(0)]
        while left and sum(sizes[place] for place in [*few, left[0]]) <= _AT_ONCE:
            few.append(left.pop(0))
        theirs, ours = there.keys_in(few), here.keys_in(few)
        for place, key in sorted({*theirs, *ours}):
            pair = theirs.get((place, key), NO_ROWS), ours.get((place, key), NO_ROWS)
            if pair[0] != pair[1]:
                counts[key] = pair[0][0], pair[1][0]
    keys = list(counts)[:_MOST]
    if not keys:
        return ()
    sides, columns = [there.texts(keys), here.texts(keys)], there.table.columns
    found = []
    for key in keys:
        source, lake = (
            {c.name: _shown(c.kind.arrow, text) for c, text in zip(columns, side[key], strict=True)}
            if key in side
            else None
            for side in sides
        )
        texts = [side[key] for side in sides if key in side]
        both = zip(columns, *texts, strict=True) if len(texts) == 2 else ()
        differ = tuple(column.name for column, one, other in both if one != other)
        row = source or lake or {}
        names = {name: row.get(name) for name in there.table.keys}
        found.append(DifferentRow(_kind(*counts[key]), names, differ, source, lake))
    return tuple(found)


def _kind(source_rows: int, lake_rows: int) -> str:
    if source_rows == lake_rows:
        return "changed"
    if source_rows == 0:
        return "extra"
    return "duplicate" if lake_rows > source_rows else "missing"
