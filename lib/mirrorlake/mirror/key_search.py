"""Where a person's rows lie: in the files of a table by key, whatever a file is made of.

All files are looked at as they lie on disk, not as a table's log shows them: what a log has
removed, or a deletion vector hides, is still in the file. The log only says what a file is to the
table.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.actions import named_files
from mirrorlake.delta.commits import versions
from mirrorlake.delta.snapshot import physical_names, read_snapshot
from mirrorlake.errors import MirrorlakeError, SchemaError, TableNotFoundError, UsageError
from mirrorlake.landing.check import inspect_file, is_text
from mirrorlake.landing.metadata import TableMetadata, read_metadata
from mirrorlake.landing.text import open_decompressed
from mirrorlake.landing.types import ColumnType, column_type, published_schema
from mirrorlake.mirror.batch import published_reader
from mirrorlake.mirror.ledger import QUARANTINE
from mirrorlake.mirror.properties import declared_keys
from mirrorlake.mirror.trash import dropped_tables
from mirrorlake.names import TableName
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name, escape_glob, literal, quote
from mirrorlake.storage.files import Storage

UNKNOWN = -1  # rows of a file that can't be read but has the key's texts in it
_BY_TEXT = ("binary", "boolean")  # Spark casts these to few types; their text goes to all
_Condition = tuple[str, str]  # what is read of a file, and the SQL that is true of a row looked for


@dataclass(frozen=True)
class KeyPart:
    """One key column's value, as text, with the column's type in the table."""

    column: str
    kind: str
    text: str

    @property
    def sql(self) -> str:
        """The value as SQL of the column's type."""
        return f"CAST({literal(self.text)} AS {self.kind})"


Key = tuple[KeyPart, ...]


def key_columns(storage: Storage, table: TableName) -> dict[str, str]:
    """A table's key columns with their types, of the table or of a dropped copy of it.

    Raises:
        TableNotFoundError: there is neither.
        UsageError: the table has no keys.
    """
    for path in delta_paths(storage, table):
        snapshot = read_snapshot(storage, path, dropped=True)
        if snapshot is None:
            continue
        keys = declared_keys(snapshot.properties)
        by_lower = {name.lower(): (name, kind) for name, kind in snapshot.schema.items()}
        if not keys:
            raise UsageError(
                f"{table} has no keys, so one person's rows can't be found.",
                hint="delete its rows with SQL, then VACUUM it.",
            )
        return dict(by_lower[key.lower()] for key in keys)
    raise TableNotFoundError(f"There is no table {table} in the lake.", hint="run `mirror` first.")


def delta_paths(storage: Storage, table: TableName) -> list[str]:
    """Where a table and the dropped copies of it lie, relative to the lake's root."""
    copies = [d.path for d in dropped_tables(storage) if d.table == table]
    return list(dict.fromkeys([table.table_path, *copies]))


def read_key(
    spark: SparkSession, storage: Storage, table: TableName, keys: Mapping[str, Any]
) -> Key:
    """The key looked for, each value in its column's type.

    Raises:
        UsageError: other columns than the keys are given, or a value is not of its type.
    """
    columns = key_columns(storage, table)
    given = {name.lower(): value for name, value in keys.items()}
    if given.keys() != {name.lower() for name in columns} or len(given) != len(keys):
        raise UsageError(
            f"The key of {table} is {', '.join(map(repr, columns))}.",
            hint="give each of these columns once, and no other.",
        )
    key = tuple(KeyPart(name, kind, str(given[name.lower()])) for name, kind in columns.items())
    tried = [f"TRY_CAST({literal(part.text)} AS {part.kind}) IS NULL" for part in key]
    row = new_session(spark).sql(f"SELECT {', '.join(tried)}").first()
    for part, is_null in zip(key, row or (), strict=True):
        if is_null or given[part.column.lower()] is None:
            raise UsageError(f"The value given for {part.column!r} is not of type {part.kind}.")
    return key


def parse_key(texts: Iterable[str], columns: Iterable[str]) -> dict[str, str]:
    """Reads `column=value` texts; either part may have equals signs of its own.

    Raises:
        UsageError: a text does not begin with one of the columns, or one is given twice.
    """
    found: dict[str, str] = {}
    names = sorted(columns, key=len, reverse=True)
    for text in texts:
        name = next((n for n in names if text.lower().startswith(f"{n.lower()}=")), None)
        if name is None or name in found:
            raise UsageError(
                f"The key is {', '.join(map(repr, names))}.", hint="write COLUMN=VALUE, each once."
            )
        found[name] = text[len(name) + 1 :]
    return found


@dataclass(frozen=True)
class DeltaTraces:
    """What of one Delta table holds the rows looked for.

    Attributes:
        path: the table, relative to the lake's root.
        current: rows by file, of the files that the newest version has.
        history: the same of the other versions' files.
        feed: the same of the change feed's files.
        log: the files of its log that tell values of files which hold the rows, or are gone.
        versions: the versions that the log has, rising.
    """

    path: str
    current: dict[str, int]
    history: dict[str, int]
    feed: dict[str, int]
    log: tuple[str, ...]
    versions: tuple[int, ...]

    @property
    def has_rows(self) -> bool:
        """Whether the rows are, or were, in the table itself."""
        return bool(self.current or self.history)

    @property
    def found(self) -> bool:
        """Whether anything has to be done about this table."""
        return bool(self.has_rows or self.feed or self.log)


class Tracer:
    """Looks for the rows of one key.

    Args:
        spark: the running session.
        storage: the lake's files.
        table: whose rows.
        key: the key looked for.
        scratch: a folder of its own, relative to the lake's root, that the caller deletes.
    """

    def __init__(
        self, spark: SparkSession, storage: Storage, table: TableName, key: Key, scratch: str
    ) -> None:
        self.key = key
        self.table = table
        self.spark = new_session(spark)
        self.storage = storage
        self._scratch = scratch

    def in_table(self, path: str) -> DeltaTraces | None:
        """Looks through all files of a Delta table; None if there is no table.

        Args:
            path: the table, one of `delta_paths` or the quarantine.
        """
        if read_snapshot(self.storage, path, dropped=True) is None:
            return None
        log = f"{path}/_delta_log/"
        below = self.storage.files_below(path)
        data = [
            file
            for file in below
            if file.endswith(".parquet") and not file.startswith(log) and "/." not in file
        ]
        frame = self.spark.sql(f"SELECT * FROM {delta_name(self.storage.path(path))}")
        live = {_name(uri) for uri in frame.inputFiles()}
        if path == QUARANTINE:
            read = "`schema` string, `table` string, content string"
            rows = self._count(dict.fromkeys(data, (read, self.quarantine_condition())))
        else:
            names = self._names_in_files(path)
            rows = self._count({file: self._typed(file, names) for file in data})
        # By name: under column mapping the feed's files lie in folders with random names.
        feed = {file: n for file, n in rows.items() if _name(file).startswith("cdc-")}
        others = {file: n for file, n in rows.items() if file not in feed}
        current = {file: n for file, n in others.items() if _name(file) in live}
        sound = {_name(file) for file in data if file not in rows}
        telling = [
            file
            for file in below
            if file.startswith(log)
            and any(_name(told) not in sound for told in named_files(self.storage, file))
        ]
        return DeltaTraces(
            path,
            current,
            {file: n for file, n in others.items() if file not in current},
            feed,
            tuple(telling),
            tuple(versions(self.storage, path)),
        )

    def _names_in_files(self, path: str) -> list[str]:
        """What a Delta table's files call the key's columns."""
        snapshot = read_snapshot(self.storage, path)
        known = physical_names(snapshot.metadata) if snapshot else {}
        physical = {name.lower(): inside for name, inside in known.items()}
        return [physical.get(part.column.lower(), part.column) for part in self.key]

    def quarantine_condition(self) -> str:
        """SQL that is true of a row of the quarantine that has the key."""
        schema = "NULL" if self.table.schema is None else literal(self.table.schema)
        parts = [f"`schema` <=> {schema}", f"`table` = {literal(self.table.name)}"]
        parts += [
            "exists(map_entries(from_json(content, 'map<string,string>')), e ->"
            f" lower(e.key) = lower({literal(part.column)})"
            f" AND (e.value = {literal(part.text)}"
            f" OR TRY_CAST(e.value AS {part.kind}) <=> {part.sql}))"
            for part in self.key
        ]
        return " AND ".join(parts)

    def in_zone(self, files: Iterable[str]) -> dict[str, int]:
        """How many rows each published file has; `UNKNOWN` where only its bytes tell."""
        metadata = read_metadata(self.storage, self.table)
        names = [part.column for part in self.key]
        found: dict[str, int] = {}
        originals: dict[str, str] = {}
        conditions: dict[str, _Condition | None] = {}
        for file in files:
            copy, rejected = self._readable(file, metadata)
            try:
                condition = None if copy is None else self._typed(copy, names)
            except (pa.ArrowException, OSError, SchemaError):
                copy = None
            if copy is None:
                if self._in_bytes(file):
                    found[file] = UNKNOWN
                continue
            if rejected:
                found[file] = rejected
            originals[copy], conditions[copy] = file, condition
        for copy, rows in self._count(conditions).items():
            file = originals[copy]
            found[file] = found.get(file, 0) + rows
        return found

    def positions(self, file: str) -> list[int]:
        """Where the key's rows are in a Parquet file of the zone, counted from 0."""
        condition = self._typed(file, [part.column for part in self.key])
        if condition is None:
            return []
        frame = self._read([file], condition).select(F.col("_metadata.row_index"))
        return sorted(row[0] for row in frame.collect())

    def _readable(self, file: str, metadata: TableMetadata) -> tuple[str | None, int]:
        """A Parquet file that Spark can read in place of `file`; how many rejected rows match."""
        name = file.rpartition("/")[2]
        try:
            text = is_text(name.lstrip("_."), metadata.text)
        except MirrorlakeError:
            return None, 0
        if not text and not name.startswith(("_", ".")):
            return file, 0
        copy = f"{self._scratch}/{uuid.uuid4().hex}.parquet"
        if not text:  # Spark passes over files whose names hide them
            self.storage.write(copy, self.storage.read(file))
            return copy, 0
        try:
            facts = inspect_file(self.storage, file, metadata, staged=copy, skip_rows=True)
        except MirrorlakeError:
            return None, 0
        return copy, sum(self._in_content(reject.content) for reject in facts.rejects)

    def _in_content(self, content: str) -> bool:
        row = json.loads(content)
        if not isinstance(row, dict):
            return all(part.text in content for part in self.key)
        values = {name.lower(): str(value) for name, value in row.items()}
        return all(values.get(part.column.lower()) == part.text for part in self.key)

    def _in_bytes(self, file: str) -> bool:
        """Whether a file that can't be read has all of the key's texts in it."""
        name = file.rpartition("/")[2]
        try:
            with self.storage.open(file) as source:
                data = open_decompressed(source, name).read()
        except (MirrorlakeError, OSError, EOFError):
            data = self.storage.read(file)
        return all(part.text.encode() in data for part in self.key)

    def _typed(self, file: str, names: list[str]) -> _Condition | None:
        """How to find the key in one Parquet file; None if it has not all key columns."""
        with self.storage.open(file) as source, pq.ParquetFile(source) as parquet:
            schema = published_schema(parquet)
        by_lower = {field.name.lower(): field for field in schema}
        read, parts = [], []
        for name, part in zip(names, self.key, strict=True):
            field = by_lower.get(name.lower())
            if field is None or pa.types.is_null(field.type):
                return None
            kind = column_type(field.type)
            read.append(f"{quote(field.name)} {kind.read}")
            parts.append(f"{_value(field.name, kind, part)} <=> {part.sql}")
        return ", ".join(read), " AND ".join(parts)

    def _read(self, files: list[str], condition: _Condition) -> DataFrame:
        read, matches = condition
        paths = [escape_glob(self.storage.path(file)) for file in files]
        return published_reader(self.spark, read).parquet(*paths).where(matches)

    def _count(self, conditions: Mapping[str, _Condition | None]) -> dict[str, int]:
        """Rows by file, one scan for all files that are read alike."""
        alike: dict[_Condition, list[str]] = {}
        for file, condition in conditions.items():
            if condition is not None:
                alike.setdefault(condition, []).append(file)
        found: dict[str, int] = {}
        for condition, files in alike.items():
            path = F.col("_metadata.file_path").alias("path")
            rows = self._read(files, condition).groupBy(path).count().collect()
            for uri, count in rows:
                # As a URI: other schemes for the same store, and odd characters escaped.
                plain = unquote(uri)
                found[max((f for f in files if plain.endswith(f"/{f}")), key=len)] = count
        return found


def _value(name: str, kind: ColumnType, part: KeyPart) -> str:
    """A file's key column in the table's type; NULL where a value does not fit it."""
    value = kind.convert.format(quote(name))
    if kind.table == part.kind:
        return value
    if kind.table in _BY_TEXT or part.kind in _BY_TEXT:
        value = f"CAST({value} AS STRING)"
    return f"TRY_CAST({value} AS {part.kind})"


def _name(path: str) -> str:
    return unquote(path.rpartition("/")[2])
