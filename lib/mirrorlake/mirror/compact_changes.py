"""A batch of ordered changes, collapsed to what each key's rows become.

The collapse is a function per key, not the last change. With n existing rows of the key it says:
keep, delete, or replace them; insert a row if there was none; append further rows (marker 0 does
not look for duplicates). `tests/helpers/model.py` is the same thing as a loop over rows.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from mirrorlake.landing.markers import Marker
from mirrorlake.spark.sql import quote

# Columns of the engine's own; a published column can't have these names.
MARKER = "__mirrorlake_marker"
POSITION = "__mirrorlake_position"
ACTION = "__mirrorlake_action"

DELETE = "delete"  # remove the key's rows
REPLACE = "replace"  # replace the key's rows; insert this one if there is none
REPLACE_ONLY = "replace_only"  # replace the key's rows; nothing if there is none
APPEND = "append"  # insert, whatever there is


def compact_changes(batch: DataFrame, keys: tuple[str, ...], markers: set[Marker]) -> DataFrame:
    """The actions that bring a table from before a batch to after it.

    Args:
        batch: the changes, with `MARKER` and `POSITION` (the order of application, unique).
        keys: the key columns, never NULL.
        markers: which markers occur in the batch at all; the fewer, the cheaper.

    Returns:
        The data columns and `ACTION`; for each key at most one row that is not `APPEND`.
    """
    key = Window.partitionBy(*[F.col(quote(name)) for name in keys])
    marker, position = F.col(MARKER), F.col(POSITION)
    is_delete = marker == int(Marker.DELETE)
    is_insert = marker == int(Marker.INSERT)
    is_update = marker.isin(int(Marker.UPDATE), int(Marker.UPSERT))

    def last(condition: Column) -> Column:
        return F.coalesce(F.max(F.when(condition, position)).over(key), F.lit(-1))

    nothing = F.lit(-1).cast("long")
    columns = batch.columns
    found = batch.withColumns(
        {
            "__deleted": last(is_delete) if Marker.DELETE in markers else nothing,
            "__updated": last(is_update),
        }
    )
    deleted, updated = F.col("__deleted"), F.col("__updated")
    alive = position > deleted  # what came before the last delete of the key has no effect
    if Marker.INSERT in markers:
        # An update makes the rows inserted before it its own, and inserts only if it meets none.
        first_update = F.min(F.when(is_update & alive, position)).over(key)
        first_insert = F.min(F.when(is_insert & alive, position)).over(key)
        replaced = F.sum((is_insert & alive & (position < updated)).cast("int")).over(key)
        replaced = replaced.cast("int")
        found = found.withColumns(
            {
                "__alone": first_insert.isNull() | (first_insert > first_update),
                "__copies": replaced,
            }
        )
        alone, copies = F.col("__alone"), F.col("__copies")
    else:
        alone, copies = F.lit(True), F.lit(0)
    inserted = F.when(alone, copies + 1).otherwise(copies)
    update_actions = F.when(deleted >= 0, F.array_repeat(F.lit(APPEND), inserted)).otherwise(
        F.concat(
            F.array(F.when(alone, F.lit(REPLACE)).otherwise(F.lit(REPLACE_ONLY))),
            F.array_repeat(F.lit(APPEND), copies),
        )
    )
    actions = (
        F.when(is_delete & (position == deleted), F.array(F.lit(DELETE)))
        .when(is_update & alive & (position == updated), update_actions)
        .when(is_insert & alive & (position > updated), F.array(F.lit(APPEND)))
    )
    kept = [F.col(quote(name)) for name in columns if name not in (MARKER, POSITION)]
    return found.select(*kept, F.explode(actions).alias(ACTION))
