"""A lake's names: its tables found by name, and made known in a Spark session's own catalogue.

The catalogue gets names and places only: files, schema and history stay in the lake, so that a
changed schema needs nothing. The lake keeps a list of the names that it made; no other is removed.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from mirrorlake.delta.log_files import has_log, is_dropped
from mirrorlake.delta.snapshot import delta_tables
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.names import STATE, TABLES, TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.sql import literal, quote, spark_message
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = 1
RECORD = f"{STATE}/registered.json"
ADDED, KEPT, REMOVED, REFUSED = OUTCOMES = ("added", "kept", "removed", "refused")
_LOCATION = re.compile(r"^Location: (.*)$", re.MULTILINE)
_log = logging.getLogger(__name__)
_LOG = "_delta_log"


class Catalog:
    """The names of a lake's tables, looked up for one query; each folder is listed at most once.

    Args:
        storage: the lake's files.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._listed: dict[str, tuple[str, ...]] = {}

    def find(self, name: TableName) -> TableName | None:
        """The lake's own spelling of a table's name: exact, else the only one but for case."""
        if self._is_table(name):
            return name
        alike = [table for table in self._alike(name) if self._is_table(table)]
        return alike[0] if len(alike) == 1 else None

    def _alike(self, name: TableName) -> list[TableName]:
        if name.schema is None:
            return [TableName(None, one) for one in self._spellings(TABLES, name.name)]
        return [
            TableName(schema, one)
            for schema in self._spellings(TABLES, name.schema)
            for one in self._spellings(f"{TABLES}/{schema}", name.name)
        ]

    def _spellings(self, folder: str, wanted: str) -> list[str]:
        return [one for one in self._folders(folder) if one.lower() == wanted.lower()]

    def _is_table(self, name: TableName) -> bool:
        # What lies in a table's own folder is no table.
        outer = () if name.schema is None else self._folders(f"{TABLES}/{name.schema}")
        path = name.table_path
        return (
            (_LOG not in outer and _LOG in self._folders(path))
            and has_log(self._storage, path)
            and not is_dropped(self._storage, path)
        )

    def _folders(self, folder: str) -> tuple[str, ...]:
        if folder not in self._listed:
            self._listed[folder] = self._storage.list(folder).folders
        return self._listed[folder]


def no_table(
    storage: Storage, wanted: str | TableName, tables: Iterable[TableName]
) -> TableNotFoundError:
    """Return the error for a name that no table has; its hint lists the nearest names.

    Args:
        storage: the lake's files.
        wanted: the name that was asked for.
        tables: the lake's tables.
    """
    known = [str(name) for name in tables]
    near = difflib.get_close_matches(str(wanted), known, n=3, cutoff=0.5)
    listed = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    hint += f"The lake has {listed}." if known else "The lake has no tables: run `mirror` first."
    return TableNotFoundError(f"There is no table {wanted} in {storage.root}.", hint=hint)


@dataclass(frozen=True)
class RegisteredTable:
    """One name.

    Attributes:
        table: the lake's table.
        name: the name in the catalogue, with its database.
        outcome: `added`, `kept`, `removed` or `refused`.
        why: why it was refused; empty otherwise.
    """

    table: str
    name: str
    outcome: str
    why: str = ""


@dataclass(frozen=True)
class Registration(Result):
    """What a catalogue knows of a lake.

    Attributes:
        catalog: which catalogue.
        tables: one entry a name, in the order of the lake's tables; removed ones last.
        dry_run: whether nothing was changed.
    """

    catalog: str
    tables: tuple[RegisteredTable, ...]
    dry_run: bool = False

    def of(self, outcome: str) -> tuple[str, ...]:
        """The names with an outcome."""
        return tuple(one.name for one in self.tables if one.outcome == outcome)

    def shown(self) -> TextTable:
        """One row a name."""
        return TextTable.of(self.tables, ("table", "name", "outcome", "why"))

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.of(outcome))} {outcome}" for outcome in OUTCOMES)
        return f"{self.catalog}: {counts}{' (a dry run)' if self.dry_run else ''}"


def register_tables(
    spark: SparkSession,
    storage: Storage,
    *,
    catalog: str = "spark_catalog",
    database: str = "default",
    dry_run: bool = False,
) -> Registration:
    """Makes the lake's tables known by name, and forgets those that are gone.

    Args:
        spark: the session whose catalogue it is.
        storage: the lake's files.
        catalog: which of the session's catalogues.
        database: where tables without a schema are; a schema of the lake is a database of its name.
        dry_run: only say it.

    Raises:
        UsageError: the lake is registered elsewhere.
    """
    record = _read(storage)
    place = {"catalog": catalog, "database": database}
    if record is not None and {key: record[key] for key in place} != place:
        raise UsageError(
            f"The lake is registered in {record['catalog']}.{record['database']}.",
            hint="call `unregister` first.",
        )
    made: dict[str, str] = record["names"] if record else {}
    catalogue = _Catalogue(spark, storage, catalog)
    wanted = delta_tables(storage)
    found = [
        catalogue.look(table, TableName(table.schema or database, table.name)) for table in wanted
    ]
    there = set(map(str, wanted))
    gone = {table: name for table, name in made.items() if table not in there}
    if not dry_run:
        # Written before a name is made: what is cut off in between can still be undone.
        _write(
            storage, place, made | {one.table: one.name for one in found if one.outcome == ADDED}
        )
        found = [catalogue.add(one) if one.outcome == ADDED else one for one in found]
    removed = [catalogue.remove(table, name, dry_run=dry_run) for table, name in gone.items()]
    if not dry_run:
        ours = [one for one in found if one.outcome == ADDED or one.table in made]
        ours += [one for one in removed if one.outcome == REFUSED]
        _write(storage, place, {one.table: one.name for one in ours})
    return Registration(catalog, (*found, *removed), dry_run)


def unregister_tables(
    spark: SparkSession, storage: Storage, *, dry_run: bool = False
) -> Registration:
    """Takes the names out of the catalogue again; tables, databases and others' names stay.

    Args:
        spark: the session whose catalogue it is.
        storage: the lake's files.
        dry_run: only say it.

    Raises:
        UsageError: the lake is not registered.
    """
    record = _read(storage)
    if record is None:
        raise UsageError("The lake is not registered.", hint="see `register`.")
    catalogue = _Catalogue(spark, storage, record["catalog"])
    removed = [
        catalogue.remove(table, name, dry_run=dry_run) for table, name in record["names"].items()
    ]
    if not dry_run:
        storage.delete(RECORD)
    return Registration(record["catalog"], tuple(removed), dry_run)


def keep_registered(
    storage: Storage,
    spark: Callable[[], SparkSession],
    mirrored: Iterable[TableName],
    dropped: Iterable[TableName],
) -> None:
    """After a cycle of the mirror: the catalogue's names follow tables that came or went.

    Nothing happens where the lake is not registered, or the session has no such database. A
    catalogue out of reach fails no cycle.

    Args:
        storage: the lake's files.
        spark: called when there is something to do.
        mirrored: the tables that the cycle has looked at.
        dropped: those that it has dropped.
    """
    try:
        record = _read(storage)
        if record is None:
            return
        names = record["names"]
        fresh = any(str(table) not in names for table in mirrored)
        if not fresh and not any(str(table) in names for table in dropped):
            return
        session, catalog = spark(), record["catalog"]
        if session.catalog.databaseExists(f"{quote(catalog)}.{quote(record['database'])}"):
            register_tables(session, storage, catalog=catalog, database=record["database"])
    except Exception as error:
        _log.warning("The catalogue does not follow the lake: %s", spark_message(error))


class _Catalogue:
    """The names in one catalogue, and where they lead; each database is listed once."""

    def __init__(self, spark: SparkSession, storage: Storage, catalog: str) -> None:
        self._spark, self._storage, self._catalog = spark, storage, catalog
        self._listed: dict[str, dict[str, str]] = {}
        self._made: set[str] = set()  # databases that are there for sure

    def look(self, table: TableName, name: TableName) -> RegisteredTable:
        """Whether a name is to be added, is there, or is something else's."""
        wanted = self._storage.path(table.table_path)
        try:
            there = self._place(name)
        except Exception as error:  # no rights
            return RegisteredTable(str(table), str(name), REFUSED, spark_message(error))
        if there is None:
            return RegisteredTable(str(table), str(name), ADDED)
        if _plain(there) == _plain(wanted):
            return RegisteredTable(str(table), str(name), KEPT)
        return RegisteredTable(str(table), str(name), REFUSED, f"the name leads to {there}")

    def add(self, one: RegisteredTable) -> RegisteredTable:
        """Makes a name, and its database if that is not there."""
        name, place = TableName.parse(one.name), TableName.parse(one.table).table_path
        database = self._database(name)
        try:
            if database not in self._made:
                self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
                self._made.add(database)
            self._spark.sql(
                f"CREATE TABLE {database}.{quote(name.name)}"
                f" USING delta LOCATION {literal(self._storage.path(place))}"
            )
        except Exception as error:  # a name that the catalogue does not allow
            return replace(one, outcome=REFUSED, why=spark_message(error))
        return one

    def remove(self, table: str, made: str, *, dry_run: bool) -> RegisteredTable:
        """Takes a name out, if it still leads to the lake's table."""
        name, place = TableName.parse(made), TableName.parse(table).table_path
        try:
            there = self._place(name)
            if there is not None and _plain(there) != _plain(self._storage.path(place)):
                return RegisteredTable(table, made, KEPT, f"the name leads to {there} by now")
            if there is not None and not dry_run:
                self._spark.sql(f"DROP TABLE {self._database(name)}.{quote(name.name)}")
        except Exception as error:
            return RegisteredTable(table, made, REFUSED, spark_message(error))
        return RegisteredTable(table, made, REMOVED)

    def _place(self, name: TableName) -> str | None:
        """Where a name leads; None if there is no such name."""
        database = self._database(name)
        if database not in self._listed:
            known = self._spark.catalog.databaseExists(database)
            rows = self._spark.sql(f"SHOW TABLE EXTENDED IN {database} LIKE '*'") if known else None
            self._listed[database] = {
                row["tableName"].lower(): _location(row["information"])
                for row in (rows.collect() if rows is not None else ())
            }
        return self._listed[database].get(name.name.lower())

    def _database(self, name: TableName) -> str:
        return f"{quote(self._catalog)}.{quote(name.schema or '')}"


def _location(information: str) -> str:
    found = _LOCATION.search(information)
    return found[1] if found else "a table of its own"


def _plain(place: str) -> str:
    """A place without what writers of URIs differ in."""
    scheme, _, rest = unquote(place).rpartition(":")
    scheme = {"file": "", "s3": "s3a"}.get(scheme, scheme)
    return f"{scheme}:{re.sub('/+', '/', rest)}".rstrip("/")


def _read(storage: Storage) -> dict[str, Any] | None:
    return read_kept(storage, RECORD, FORMAT)


def _write(storage: Storage, place: dict[str, str], names: dict[str, str]) -> None:
    storage.write_json(RECORD, {"format": FORMAT, **place, "names": names})
