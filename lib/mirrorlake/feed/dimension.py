"""How changes become a slowly changing dimension: keys, sequence, type, conditions and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from mirrorlake.delta.table import column_types
from mirrorlake.errors import UsageError
from mirrorlake.feed.schema import COMMIT_VERSION, RESERVED, create_table
from mirrorlake.history.diff import CHANGE_TYPE
from mirrorlake.spark.sql import delta_name, quote, temporary_view


@dataclass(frozen=True)
class Dimension:
    """How changes become a table.

    Attributes:
        keys: the columns that tell rows apart.
        sequence_by: a column or SQL expression that orders the changes of a key; never NULL.
        stored_as: 1 keeps a row a key, 2 a row a key and period, from `__START_AT` up to, and
            without, `__END_AT`.
        ignore_null_updates: a NULL in a change leaves the column as it is.
        apply_as_deletes: an SQL condition for changes that delete their key.
        apply_as_truncates: an SQL condition for changes that empty the table; type 1 only.
        columns: the columns to keep, keys included; by default all.
        except_columns: columns to leave out.
        track_history: type 2 only: a new period starts only where one of these columns changes,
            other columns show the period's last value; by default all columns.
    """

    keys: tuple[str, ...]
    sequence_by: str
    stored_as: int = 1
    ignore_null_updates: bool = False
    apply_as_deletes: str | None = None
    apply_as_truncates: str | None = None
    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] = ()
    track_history: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.keys:
            raise UsageError("A dimension needs keys.", hint="say which columns tell rows apart.")
        if self.stored_as not in (1, 2):
            raise UsageError(f"There is no type {self.stored_as}.", hint="choose 1 or 2.")
        if self.stored_as == 1 and self.track_history is not None:
            raise UsageError("Type 1 has no history to track.", hint="choose type 2.")
        if self.stored_as == 2 and self.apply_as_truncates:
            raise UsageError("Type 2 keeps its history: it can't be emptied.", hint="use type 1.")

    def data_columns(self, changes: DataFrame) -> list[str]:
        """The columns of a change that the table keeps.

        Raises:
            UsageError: a named column isn't there, or one is named like the table's own.
        """
        known = {name.lower(): name for name in changes.columns}
        wanted = list(self.columns or changes.columns)
        named = [*self.keys, *wanted, *self.except_columns, *(self.track_history or ())]
        for name in named:
            if name.lower() not in known:
                raise UsageError(f"The changes have no column {name}.", column=name)
        left_out = {name.lower() for name in self.except_columns}
        kept = [known[n.lower()] for n in wanted if n.lower() not in left_out]
        if missing := [k for k in self.keys if known[k.lower()] not in kept]:
            raise UsageError(f"The key {missing[0]} is left out.", column=missing[0])
        if clash := [name for name in kept if name in OWN]:
            raise UsageError(f"The column {clash[0]} is the table's own.", column=clash[0])
        return kept


def feed_dimension(keys: Sequence[str], stored_as: int = 1) -> Dimension:
    """The dimension of a table's own change feed: its versions are the sequence."""
    return Dimension(
        tuple(keys),
        COMMIT_VERSION,
        stored_as,
        apply_as_deletes=f"{CHANGE_TYPE} = 'delete'",
        except_columns=RESERVED,
    )


START, END = "__START_AT", "__END_AT"  # type 2: a row's period
SEQUENCE = "__SEQUENCE"  # type 1: of the row's last change
SEQUENCES = "__SEQUENCES"  # type 1, NULLs ignored: of each column's last value
INHERITED = "__INHERITED"  # type 2, NULLs ignored: columns whose value is from the period before
CHANGES = "__CHANGES"  # type 2, tracked columns: the changes that a period is made of
OWN = (START, END, SEQUENCE, SEQUENCES, INHERITED, CHANGES)
# Columns of changes on their way, never of a table.
IS_DELETE, IS_TRUNCATE, TIE = "__mirrorlake_delete", "__mirrorlake_truncate", "__mirrorlake_tie"
IS_NEW = "__mirrorlake_new"
_NOT_THERE = (
    "DELTA_TABLE_NOT_FOUND",
    "PATH_NOT_FOUND",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_MISSING_DELTA_TABLE",
)


def table_or_none(spark: SparkSession, path: str) -> DataFrame | None:
    """The rows of the Delta table at a path, or None if there is none."""
    try:
        found = spark.read.format("delta").load(path)
        found.schema  # noqa: B018 - a Connect client does not look before it is asked for it
        return found
    except AnalysisException as error:
        if any(condition in str(error) for condition in _NOT_THERE):
            return None
        raise


def ready_table(rows: DataFrame, path: str, keys: Sequence[str]) -> DataFrame:
    """The table at a path, made or widened so that it has the columns of some rows."""
    spark = rows.sparkSession
    wanted = column_types(rows.schema)
    found = table_or_none(spark, path)
    if found is None:
        create_table(spark, path, wanted, keys=keys)
    elif missing := [name for name in wanted if name not in found.columns]:
        added = ", ".join(f"{quote(name)} {wanted[name]}" for name in missing)
        spark.sql(f"ALTER TABLE {delta_name(path)} ADD COLUMNS ({added})")
    return spark.read.format("delta").load(path)


def first_of_each(events: DataFrame, keys: Sequence[str], order: Sequence[str]) -> DataFrame:
    """One change a key and sequence: the first in an order."""
    ordered = Window.partitionBy(*map(quote, keys)).orderBy(SEQUENCE, *order)
    previous = "__mirrorlake_previous"
    known = events.withColumn(previous, F.lag(SEQUENCE).over(ordered))
    return known.where(f"{previous} IS NULL OR {previous} <> {SEQUENCE}").drop(previous)


def same_key(keys: Sequence[str], left: str = "t", right: str = "s") -> str:
    """The SQL condition that two rows have one key; NULL equals NULL."""
    return " AND ".join(f"{left}.{quote(key)} <=> {right}.{quote(key)}" for key in keys)


def merge_into(rows: DataFrame, path: str, on: str, clauses: str) -> None:
    """Merges rows `s` into the table `t` at a path, in one commit."""
    with temporary_view(rows) as view:
        rows.sparkSession.sql(f"MERGE INTO {delta_name(path)} t USING {view} s ON {on} {clauses}")


def insert_row(names: Sequence[str]) -> str:
    """A merge's clause that adds a row of these columns of the source."""
    values = ", ".join(f"s.{quote(name)}" for name in names)
    return f"INSERT ({', '.join(map(quote, names))}) VALUES ({values})"
