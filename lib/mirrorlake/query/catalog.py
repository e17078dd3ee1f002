"""Finds a lake's tables by name, and registers them in the catalog of a Spark session.

The session's catalog gets only names and locations. Files, schema and history stay in the lake, so
a changed schema needs no update. The lake records the names that it registered, and removes no
other.
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
from mirrorlake.delta.snapshot import delta_tables, missing_table
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.names import STATE, TABLES, TableName, as_table, quote
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.sql import literal, spark_message
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
_DEFAULT = "default"
_FORMAT = "spark.sql.sources.default"


class Catalog:
    """The names of a lake's tables, for one query. Each folder is listed at most once.

    Args:
        storage: the lake's files.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._listed: dict[str, tuple[str, ...]] = {}

    def find(self, name: TableName) -> TableName | None:
        """Return the name of an existing table, with upper and lower case as in the lake.

        An exact match comes first, then the only match that differs in case; otherwise None.
        """
        if self._is_table(name):
            return name
        alike = [table for table in self._alike(name) if self._is_table(table)]
        return alike[0] if len(alike) == 1 else None

    def existing(self, name: str | TableName) -> TableName:
        """Return the name of an existing table as in `find`.

        Raises:
            TableNotFoundError: the table does not exist. The hint lists similar names.
        """
        if (found := self.find(as_table(name))) is None:
            raise no_table(name, delta_tables(self._storage))
        return found

    def existing_or_new(self, name: str | TableName) -> TableName:
        """Return the name of an existing table as in `find`, or otherwise the name as given."""
        wanted = as_table(name)
        return self.find(wanted) or wanted

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
        # A folder within a table's folder is not a table.
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


def no_table(wanted: str | TableName, tables: Iterable[TableName]) -> TableNotFoundError:
    """Return the error for a name that no table has; its hint lists the nearest names.

    Args:
        wanted: the name that was asked for.
        tables: the lake's tables.
    """
    known = [str(name) for name in tables]
    near = difflib.get_close_matches(str(wanted), known, n=3, cutoff=0.5)
    listed = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    none = "The lake has no tables: publish a file unless there is one, and run `mirror`."
    hint += f"The lake has {listed}." if known else none
    return missing_table(wanted, hint=hint)


@dataclass(frozen=True)
class RegisteredTable:
    """The registration of one table.

    Attributes:
        table: the name of the table in the lake.
        name: the name in the session's catalog, with its database.
        outcome: `added`, `kept`, `removed` or `refused`.
        why: the reason of a refusal; otherwise empty.
    """

    table: str
    name: str
    outcome: str
    why: str = ""


@dataclass(frozen=True)
class Registration(Result):
    """The outcome of registering or unregistering a lake's tables in a catalog.

    Attributes:
        catalog: the name of the catalog.
        tables: one entry per name, in the order of the lake's tables; removed names come last.
        dry_run: True if nothing was changed.
    """

    catalog: str
    tables: tuple[RegisteredTable, ...]
    dry_run: bool = False

    def of(self, outcome: str) -> tuple[str, ...]:
        """Return the registered names with this outcome."""
        return tuple(one.name for one in self.tables if one.outcome == outcome)

    def shown(self) -> TextTable:
        """Return a table with one row per name."""
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
    """Register the lake's tables in a catalog, and remove the names of dropped tables.

    The session then creates Delta tables, those of its own database `default` in the lake.

    Args:
        spark: the session that has the catalog.
        storage: the lake's files.
        catalog: the name of the catalog.
        database: the database for tables without a schema. Tables of a schema are registered in the
            database of the same name.
        dry_run: report the outcome without any change.

    Raises:
        UsageError: the lake is registered in another catalog or database.
    """
    done = _register(spark, storage, catalog, database, dry_run=dry_run)
    if not dry_run:
        spark.conf.set(_FORMAT, "delta")
        if _is_private(spark, catalog) and database == _DEFAULT:
            _locate(spark, storage.path(TABLES))
    return done


def _is_private(spark: SparkSession, catalog: str) -> bool:
    """Check whether a catalog ends with the Spark application, and is not a metastore's."""
    kind = spark.conf.get("spark.sql.catalogImplementation")
    return catalog == "spark_catalog" and kind == "in-memory"


def _locate(spark: SparkSession, place: str) -> None:
    """Set the folder for new tables of the database `default`.

    DROP DATABASE deletes the folder of every other database, so theirs must not be in a lake.
    """
    spark.sql(f"ALTER DATABASE {_DEFAULT} SET LOCATION {literal(place)}")


def _register(
    spark: SparkSession, storage: Storage, catalog: str, database: str, *, dry_run: bool = False
) -> Registration:
    record = _read(storage)
    place = {"catalog": catalog, "database": database}
    if record is not None and {key: record[key] for key in place} != place:
        raise UsageError(
            f"The lake is registered in {record['catalog']}.{record['database']}.",
            hint="call `unregister` first.",
        )
    made: dict[str, str] = record["names"] if record else {}
    session_catalog = _SessionCatalog(spark, storage, catalog)
    wanted = delta_tables(storage)
    found = [
        session_catalog.look(table, TableName(table.schema or database, table.name))
        for table in wanted
    ]
    there = set(map(str, wanted))
    gone = {table: name for table, name in made.items() if table not in there}
    if not dry_run:
        # Recorded before a name is created, so that an interrupted call can be undone.
        _write(
            storage, place, made | {one.table: one.name for one in found if one.outcome == ADDED}
        )
        found = [session_catalog.add(one) if one.outcome == ADDED else one for one in found]
    removed = [session_catalog.remove(table, name, dry_run=dry_run) for table, name in gone.items()]
    if not dry_run:
        ours = [one for one in found if one.outcome == ADDED or one.table in made]
        ours += [one for one in removed if one.outcome == REFUSED]
        _write(storage, place, {one.table: one.name for one in ours})
    return Registration(catalog, (*found, *removed), dry_run)


def unregister_tables(
    spark: SparkSession, storage: Storage, *, dry_run: bool = False
) -> Registration:
    """Remove the registered names from the catalog; tables, databases and other names stay.

    New tables of the session have Spark's default format again, and those of the database `default`
    are created in Spark's warehouse, unless another lake has been registered meanwhile.

    Args:
        spark: the session that has the catalog.
        storage: the lake's files.
        dry_run: report the outcome without any change.

    Raises:
        UsageError: the lake is not registered.
    """
    record = _read(storage)
    if record is None:
        raise UsageError("The lake is not registered.", hint="call `register` first.")
    session_catalog = _SessionCatalog(spark, storage, record["catalog"])
    removed = [
        session_catalog.remove(table, name, dry_run=dry_run)
        for table, name in record["names"].items()
    ]
    if not dry_run:
        storage.delete(RECORD)
        is_current = True
        if _is_private(spark, record["catalog"]) and record["database"] == _DEFAULT:
            there = spark.catalog.getDatabase(_DEFAULT).locationUri
            if is_current := _plain(there) == _plain(storage.path(TABLES)):
                _locate(spark, str(spark.conf.get("spark.sql.warehouse.dir")))
        if is_current:
            spark.conf.unset(_FORMAT)
    return Registration(record["catalog"], tuple(removed), dry_run)


def keep_registered(
    storage: Storage,
    spark: Callable[[], SparkSession],
    mirrored: Iterable[TableName],
    dropped: Iterable[TableName],
) -> None:
    """Update the registered names after a cycle of the mirror created or dropped tables.

    Nothing happens if the lake is not registered, or if the session does not have the database. An
    unavailable catalog does not fail the cycle; a warning is logged.

    Args:
        storage: the lake's files.
        spark: returns the session; called only if names must change.
        mirrored: the tables of the cycle.
        dropped: the tables that the cycle dropped.
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
            _register(session, storage, catalog, record["database"])
    except Exception as error:
        _log.warning("The names in the catalog were not updated: %s", spark_message(error))


def forget_name(spark: SparkSession, storage: Storage, table: TableName) -> None:
    """Remove the name of a dropped table from the catalog that the lake is registered in."""
    if record := _read(storage):
        name = TableName(table.schema or record["database"], table.name)
        catalog = _SessionCatalog(spark, storage, record["catalog"])
        gone = catalog.remove(str(table), str(name), dry_run=False)
        if gone.outcome != REMOVED:
            _log.warning("The name %s was not removed from the catalog: %s", name, gone.why)
    keep_registered(storage, lambda: spark, (), [table])


class _SessionCatalog:
    """The names in one catalog of a session and their locations; each database is listed once."""

    def __init__(self, spark: SparkSession, storage: Storage, catalog: str) -> None:
        self._spark, self._storage, self._catalog = spark, storage, catalog
        self._listed: dict[str, dict[str, str]] = {}
        self._made: set[str] = set()  # databases that exist

    def look(self, table: TableName, name: TableName) -> RegisteredTable:
        """Return whether a name is to be added, exists, or belongs to another table."""
        wanted = self._storage.path(table.table_path)
        try:
            there = self._place(name)
        except Exception as error:  # such as missing permissions
            return RegisteredTable(str(table), str(name), REFUSED, spark_message(error))
        if there is None:
            return RegisteredTable(str(table), str(name), ADDED)
        if _plain(there) == _plain(wanted):
            return RegisteredTable(str(table), str(name), KEPT)
        return RegisteredTable(str(table), str(name), REFUSED, f"the name refers to {there}")

    def add(self, one: RegisteredTable) -> RegisteredTable:
        """Create a name, and its database if it does not exist."""
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
        except Exception as error:  # such as a name that the catalog does not allow
            return replace(one, outcome=REFUSED, why=spark_message(error))
        return one

    def remove(self, table: str, made: str, *, dry_run: bool) -> RegisteredTable:
        """Remove a name if it still refers to the lake's table."""
        name, place = TableName.parse(made), TableName.parse(table).table_path
        try:
            there = self._place(name)
            if there is not None and _plain(there) != _plain(self._storage.path(place)):
                return RegisteredTable(table, made, KEPT, f"the name now refers to {there}")
            if self._owns_files(name) and self._storage.files_below(place):
                return RegisteredTable(table, made, KEPT, "the catalog would delete its files")
            if there is not None and not dry_run:
                self._spark.sql(f"DROP TABLE {self._database(name)}.{quote(name.name)}")
        except Exception as error:
            return RegisteredTable(table, made, REFUSED, spark_message(error))
        return RegisteredTable(table, made, REMOVED)

    def _place(self, name: TableName) -> str | None:
        """Return the location of a registered name; None if the name does not exist."""
        found = self._information(name)
        return None if found is None else _location(found)

    def _owns_files(self, name: TableName) -> bool:
        """Check whether DROP TABLE would delete the files of a registered name."""
        return "\nType: MANAGED" in (self._information(name) or "")

    def _information(self, name: TableName) -> str | None:
        database = self._database(name)
        if database not in self._listed:
            known = self._spark.catalog.databaseExists(database)
            rows = self._spark.sql(f"SHOW TABLE EXTENDED IN {database} LIKE '*'") if known else None
            self._listed[database] = {
                row["tableName"].lower(): row["information"]
                for row in (rows.collect() if rows is not None else ())
            }
        return self._listed[database].get(name.name.lower())

    def _database(self, name: TableName) -> str:
        return f"{quote(self._catalog)}.{quote(name.schema or '')}"


def _location(information: str) -> str:
    found = _LOCATION.search(information)
    return found[1] if found else "a table without a location"


def _plain(place: str) -> str:
    """Return a location in a normal form: without escapes, doubled slashes and scheme variants."""
    scheme, _, rest = unquote(place).rpartition(":")
    scheme = {"file": "", "s3": "s3a"}.get(scheme, scheme)
    return f"{scheme}:{re.sub('/+', '/', rest)}".rstrip("/")


def _read(storage: Storage) -> dict[str, Any] | None:
    return read_kept(storage, RECORD, FORMAT)


def _write(storage: Storage, place: dict[str, str], names: dict[str, str]) -> None:
    storage.write_json(RECORD, {"format": FORMAT, **place, "names": names})
