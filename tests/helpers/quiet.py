"""Commit versions of a table that change no row."""

from __future__ import annotations

from mirrorlake import Table

# The tests of archives commit the second to the fourth kind; the others rewrite files.
QUIET = ("compact", "column", "miss", "property", "vorder")


def commit_quietly(table: Table, kind: str) -> int:
    """Commit a version without changed rows and return it.

    A table that has nothing to rewrite gets a property instead, so there is always a new version.
    """
    version = table.snapshot().version
    run, name = table.spark.sql, table.sql_name
    if kind == "column":
        run(f"ALTER TABLE {name} ADD COLUMN added_after_{version} INT")
    elif kind == "vorder":
        table.optimize.vorder(again=True)
    elif kind == "compact":
        table.optimize.compact()
    elif kind == "miss":
        run(f"MERGE INTO {name} USING (SELECT 1) ON false WHEN MATCHED THEN DELETE")
    if table.snapshot().version == version:
        run(f"ALTER TABLE {name} SET TBLPROPERTIES ('mirrorlake.test' = '{version}')")
    return table.snapshot().version
