"""Find the rows of given keys with DuckDB, in about a fifth of Spark's time.

A Spark job distributes the files over its tasks. DuckDB reads the key column of each file. It reads
the other columns only in those parts of a file that contain one of the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mirrorlake.delta.actions import Places, deleted_positions
from mirrorlake.delta.log_files import Action
from mirrorlake.spark.executors import map_in_arrow
from mirrorlake.storage.files import Storage

_KEYS = frozenset(("tinyint", "smallint", "int", "bigint", "string"))
# DuckDB and Spark read the same values of these types, and of decimals.
_READ = _KEYS | {"float", "double", "boolean", "binary", "date", "timestamp", "timestamp_ntz"}
_HIDDEN = frozenset(("filename", "file_row_number", "file_index"))  # DuckDB's own columns
_PATTERN = frozenset("*?[]{}")  # DuckDB would expand these characters in a path
# Java encodes other ASCII characters, and all spaces and controls, in the path of a URI.
_ENCODED = re.compile(
    r"[^\w/:@&=+$,;!.~'()*\x80-\U0010ffff-]"
    r"|[\x80-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]",
    re.ASCII,
)
# Py4J reports the error of a task as text; a worker that crashed has no exception.
_WORKER_FAILED = re.compile(r"PythonException|Python worker")
_CAUSE = re.compile(r"^\s*(?!org\.|py4j\.|java\.)[\w.]+(Error|Exception): .+$", re.MULTILINE)
MANY_ROWS = 1_000_000  # with fewer rows to search, DuckDB is not faster than Spark
MOST_KEYS = 20_000  # the driver collects the keys
_BATCH_ROWS = 1_000_000
_JULIAN = b"org.apache.spark.legacy"  # in the metadata of files with dates of the old calendar
_CONFIG: dict[str, Any] = {"threads": 1, "autoinstall_known_extensions": False}


@dataclass(frozen=True)
class KeySearch:
    """A search for the rows of some keys in a table on a local disk.

    Attributes:
        storage: the lake's files.
        folder: the folder of the table within the lake.
        files: the files to search.
        names: the names of the columns in the files, by their names in the table; empty if the
            files are read by column ids.
        schema: the columns of the result, as a scan by Spark returns them for the same files.
        ids: the columns of the row id and of its commit version, if they are in the schema.
        place: the columns of the row's file and of its position there, if they are in the schema.
    """

    storage: Storage
    folder: str
    files: Sequence[Action]
    names: Mapping[str, str]
    schema: StructType
    ids: tuple[str, ...] = ()
    place: tuple[str, ...] = ()

    def select(self, columns: Sequence[str]) -> KeySearch:
        """Return the search for some columns of the table; they include those of the keys."""
        schema = StructType([self.schema[name] for name in columns])
        return replace(self, schema=schema, ids=(), place=())

    def is_possible(self, session: SparkSession, key: str) -> bool:
        """Check whether DuckDB can read the files: it needs local paths and known types.

        Args:
            session: the session of the query.
            key: the column of the keys.
        """
        types = {field.name: field.dataType.simpleString() for field in self.schema}
        return (
            self.storage.local is not None
            and str(session.sparkContext.master).startswith("local")
            and key in self.names
            and all(_PATTERN.isdisjoint(self._path(add)) for add in self.files)
            and _HIDDEN.isdisjoint(name.lower() for name in [*types, *self.names.values()])
            and not any(":" in add["path"] or add["path"].startswith("/") for add in self.files)
            # The values of such columns are not in the files.
            and not any(add.get("partitionValues") for add in self.files)
            and types[key] in _KEYS
            and all(kind in _READ or kind.startswith("decimal") for kind in types.values())
        )

    def run(self, session: SparkSession, key: str, keys: Sequence[Any]) -> DataFrame:
        """Return the rows of the keys, without those that deletion vectors delete.

        Args:
            session: the session of the query.
            key: the column of the keys.
            keys: the keys; NULL finds no row.
        """
        tasks = max(1, min(len(self.files), session.sparkContext.defaultParallelism))
        ordered = sorted(self.files, key=lambda add: int(add["size"]), reverse=True)
        parts = [ordered[number::tasks] for number in range(tasks)]
        schema = to_arrow_schema(self.schema)
        wanted = pa.table({"key": pa.array(keys, schema.field(key).type)})

        def search_parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self._find(parts[number], key, wanted, schema)

        return map_in_arrow(session.range(0, tasks, 1, tasks), search_parts, self.schema)

    def _find(
        self, files: Sequence[Action], key: str, keys: pa.Table, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files. Files with equal columns are read together.

        Raises:
            ValueError: Spark reads other values than DuckDB from a file.
        """
        import duckdb

        alike: dict[pa.Schema, list[Action]] = {}
        for add in files:
            columns = pq.read_schema(self._path(add))
            self._check(add, columns)
            alike.setdefault(columns.remove_metadata(), []).append(add)
        with duckdb.connect(config=_CONFIG) as engine:
            engine.register("keys", keys)
            for columns, group in alike.items():
                if self.names[key] not in columns.names:
                    continue  # the files are older than the column, so all their keys are NULL
                found = engine.sql(self._query(columns.names, group, key))
                for rows in found.to_arrow_reader(_BATCH_ROWS):
                    yield from self._placed(pa.table(rows), group, schema)

    def _check(self, add: Action, columns: pa.Schema) -> None:
        """Raise an error if Spark reads other values than DuckDB from a file."""
        missing = {name.lower() for name in self.names.values() if name not in columns.names}
        if other := [name for name in columns.names if name.lower() in missing]:
            raise ValueError(f"{add['path']} spells the column {other[0]} differently.")
        if any(name.startswith(_JULIAN) for name in columns.metadata or ()):
            raise ValueError(f"{add['path']} has dates of the Julian calendar.")

    def _query(self, columns: Sequence[str], files: Sequence[Action], key: str) -> str:
        """Return the query of the rows of files that have these columns."""
        paths = ", ".join("'" + self._path(add).replace("'", "''") + "'" for add in files)
        inside = {name: self.names.get(name, name) for name in self.schema.names}
        read = [f"{_quoted(c)} AS {_quoted(n)}" for n, c in inside.items() if c in columns]
        return (
            f"SELECT {', '.join(read)}, file_row_number, filename"
            f" FROM read_parquet([{paths}], file_row_number = true, filename = true,"
            " hive_partitioning = false)"
            f" WHERE {_quoted(inside[key])} IN (SELECT key FROM keys)"
        )

    def _placed(
        self, rows: pa.Table, files: Sequence[Action], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `_query` that are not deleted, with all columns of the result."""
        paths = pa.array([self._path(add) for add in files])
        numbers = pc.index_in(rows["filename"].cast(pa.string()), value_set=paths).to_numpy()
        rows, place = rows.combine_chunks(), Places(self.storage, self.folder).place
        for number in np.unique(numbers):
            add = files[number]
            some = rows.filter(pa.array(numbers == number))
            if add.get("deletionVector"):
                gone = deleted_positions(place, add["deletionVector"])
                some = some.filter(pa.array(~np.isin(some["file_row_number"].to_numpy(), gone)))
            if some.num_rows:
                yield self._complete(some, add, schema)

    def _complete(self, rows: pa.Table, add: Action, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows of one file in the result's columns; columns that the file lacks are NULL."""
        count, places = rows.num_rows, rows["file_row_number"].cast(pa.int64())
        found = {name: rows[name] for name in rows.column_names}
        if self.ids:
            defaults = (pc.add(places, add["baseRowId"]), add["defaultRowCommitVersion"])
            for name, default in zip(self.ids, defaults, strict=True):
                found[name] = pc.coalesce(found[name], default) if name in found else default
        path = "file:" + _ENCODED.sub(lambda one: quote(one[0]), self._path(add))
        found |= dict(zip(self.place, (path, places), strict=False))
        arrays = []
        for field in schema:
            values = found.get(field.name)
            if not isinstance(values, pa.ChunkedArray):
                values = pa.chunked_array([pa.repeat(pa.scalar(values, field.type), count)])
            arrays.append(values.cast(field.type).combine_chunks())
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _path(self, add: Action) -> str:
        return f"{self.storage.path(self.folder)}/{unquote(add['path'])}"


def failure(error: Exception) -> str | None:
    """Return why the search failed; None if the error has another cause."""
    if not isinstance(error, PythonException) and not _WORKER_FAILED.search(str(error)):
        return None
    found = _CAUSE.search(str(error))
    return found[0].strip() if found else type(error).__name__


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
