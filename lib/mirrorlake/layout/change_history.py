"""What each change of a table cost, in files, row groups, rows and bytes.

A semantic model that has loaded a table keeps what a change preserves and loads the rest again: the
part of the bytes that a change leaves alone is its incremental effect.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from mirrorlake.delta.files import read_actions
from mirrorlake.delta.log_files import find_segment
from mirrorlake.delta.table import Table
from mirrorlake.layout.footers import read_footers
from mirrorlake.storage import Storage


def change_history(table: Table, version: int) -> DataFrame:
    """One row a commit, oldest first, as far back as the log still goes.

    Where the oldest commits are gone the counts start with the files of a checkpoint. Row groups
    are NULL from where a file is involved that VACUUM has taken: nobody can count them any more.

    Args:
        table: the table.
        version: the last version to show.
    """
    spark, storage, table_path = table.spark, table.storage, table.name.table_path
    segment = find_segment(storage, table_path, version, oldest=True)
    actions = read_actions(spark, storage, segment)
    changes = _changes(_with_groups(actions, storage, table_path))
    # A commit may change no file, and a checkpoint's files belong to no commit that is still there.
    told = changes.join(_commits(actions), "version", "full_outer").withColumns(
        {name: F.when(F.col("vectors").isNull(), 0).otherwise(F.col(name)).alias(name)
         for name in changes.columns if name != "version"}
    )  # fmt: skip
    in_order = Window.orderBy("version")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    running = {f"{what}_after": F.sum(f"{what}_delta").over(so_far)
               for what in ("files", "size", "rows")}  # fmt: skip
    unknown = F.sum(F.when(F.col("groups_delta").isNull(), 1).otherwise(0)).over(so_far)
    running["groups_after"] = F.when(unknown == 0, F.sum("groups_delta").over(so_far))
    before = {
        f"{what}_before": F.coalesce(F.lag(f"{what}_after").over(in_order), F.lit(0))
        for what in ("files", "groups")
    }
    told = told.withColumns(running).withColumns(before).where(F.col("version") > segment.base)
    kept = F.try_divide(F.col("size_after") - F.col("size_added"), "size_after") * 100
    effect = F.when(F.col("size_removed") == 0, F.lit(100.0)).otherwise(kept)
    return told.select(
        F.col("version").alias("Change Number"),
        F.col("operation").alias("Change Type"),
        F.col("predicate").alias("Predicate"),
        F.col("at").alias("Modification Time"),
        effect.alias("Incremental Effect"),
        *_group("Files", "files"),
        (F.col("files_before") - F.col("files_removed")).alias("Files Preserved"),
        F.col("files_after").alias("Files After Change"),
        *_group("Size", "size"),
        F.col("size_after").alias("Size After Change"),
        *_group("Row Groups", "groups"),
        (F.col("groups_before") - F.col("groups_removed")).alias("Row Groups Preserved"),
        F.col("groups_after").alias("Row Groups After Change"),
        *_group("Rows", "rows"),
        F.col("rows_delta").alias("Rows Delta"),
        F.col("rows_after").alias("Rows After Change"),
        F.col("vectors").alias("Deletion Vectors Changed"),
        F.col("tags").alias("Tags"),
    ).orderBy("Change Number")


def _group(title: str, what: str) -> list[Column]:
    return [
        F.col(f"{what}_{kind.lower()}").alias(f"{title} {kind}") for kind in ("Added", "Removed")
    ]


def _with_groups(actions: DataFrame, storage: Storage, table_path: str) -> DataFrame:
    """The files' actions with rows, bytes and row groups, read from the footers still there."""
    files = actions.where(F.col("kind").isin("add", "remove"))
    # A remove need not say how large the file was; the add that brought it does.
    known = files.groupBy("path").agg(
        F.max("size").alias("size"), F.max("rows").alias("known_rows")
    )
    footers = read_footers(known, storage, table_path).select(
        "path",
        F.coalesce("size", F.lit(0)).alias("bytes"),
        F.coalesce("footer.rows", "known_rows").alias("physical_rows"),
        F.col("footer.row_groups").alias("groups"),
    )
    return files.join(footers, "path", "left")


def _changes(files: DataFrame) -> DataFrame:
    """One row a version: what was added, removed, or only got another deletion vector."""
    live = F.col("physical_rows") - F.col("deleted")
    added, removed = F.col("kind") == "add", F.col("kind") == "remove"
    by_file = files.groupBy("version", "path").agg(
        F.bool_or(added).alias("added"),
        F.bool_or(removed).alias("removed"),
        F.first("bytes").alias("bytes"),
        F.first("groups").alias("groups"),
        F.coalesce(F.sum(F.when(added, live)), F.lit(0)).alias("rows_in"),
        F.coalesce(F.sum(F.when(removed, live)), F.lit(0)).alias("rows_out"),
    )
    comes, goes = F.expr("added AND NOT removed"), F.expr("removed AND NOT added")
    stays = F.expr("added AND removed")
    rows_in = F.when(stays, F.greatest(F.col("rows_in") - F.col("rows_out"), F.lit(0)))
    rows_out = F.when(stays, F.greatest(F.col("rows_out") - F.col("rows_in"), F.lit(0)))
    counted = by_file.groupBy("version").agg(
        F.count_if(comes).alias("files_added"),
        F.count_if(goes).alias("files_removed"),
        F.count_if(stays).alias("vectors"),
        F.sum(F.when(comes, F.col("bytes")).otherwise(0)).alias("size_added"),
        F.sum(F.when(goes, F.col("bytes")).otherwise(0)).alias("size_removed"),
        _sum_if_known(comes).alias("groups_added"),
        _sum_if_known(goes).alias("groups_removed"),
        F.sum(rows_in.otherwise(F.col("rows_in"))).alias("rows_added"),
        F.sum(rows_out.otherwise(F.col("rows_out"))).alias("rows_removed"),
    )
    return counted.withColumns(
        {
            f"{what}_delta": F.col(f"{what}_added") - F.col(f"{what}_removed")
            for what in ("files", "size", "groups", "rows")
        }
    )


def _sum_if_known(which: Column) -> Column:
    """Row groups of some files; NULL if any of them can't be read any more."""
    unknown = F.count_if(which & F.col("groups").isNull())
    return F.when(unknown == 0, F.sum(F.when(which, F.col("groups")).otherwise(0)))


def _commits(actions: DataFrame) -> DataFrame:
    body = F.col("body")
    return actions.where("kind = 'commitInfo'").select(
        "version",
        F.get_json_object(body, "$.operation").alias("operation"),
        F.get_json_object(body, "$.operationParameters.predicate").alias("predicate"),
        F.timestamp_millis(F.get_json_object(body, "$.timestamp").cast("long")).alias("at"),
        F.get_json_object(body, "$.tags").alias("tags"),
    )
