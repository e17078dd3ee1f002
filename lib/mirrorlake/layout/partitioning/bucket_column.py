"""The bucket as a column of the table, on demand, so that engines that know no tags can prune too.

Operations fill it when they rewrite a file; in the tail it is NULL. A check constraint refuses any
other value than the key's own bucket, so that a changed key can't leave a wrong one behind.
A reader asks for `k = 'x' AND (bucket = 10 OR bucket IS NULL)`, and statistics do the rest.
"""

from __future__ import annotations

from mirrorlake.errors import QueryError, UsageError
from mirrorlake.layout.partitioning.keys import bucket_sql
from mirrorlake.layout.partitioning.policy import HashKey, Policy
from mirrorlake.spark.messages import spark_message
from mirrorlake.spark.sql import quote
from mirrorlake.table import Table

_PROPERTY = "delta.constraints."
_RESERVED = ("_metadata", "_change_", "_commit_", "__mirrorlake_")


def check_bucket_column(table: Table, policy: Policy, name: str) -> HashKey:
    """The hash key whose bucket the column is to hold.

    Raises:
        UsageError: there is no hash key, or the column is one of the table's own, or holds the
            buckets of another policy.
    """
    if policy.hash is None:
        raise UsageError("Without a hash key there is no bucket to store.")
    if not name.strip() or name.lower().startswith(_RESERVED):
        raise UsageError(
            f"{name!r} can't be the name of the column for the bucket.",
            hint="choose one like bucket, which is neither empty nor hides what Spark adds.",
        )
    snapshot = table.snapshot()
    known = snapshot.properties.get(f"{_PROPERTY}{_constraint(name)}")
    if name in snapshot.schema and known != _check(name, policy.hash):
        raise UsageError(
            f"{table.name} has a column {name!r} that does not hold the buckets of this policy.",
            hint="choose another name for the column.",
        )
    return policy.hash


def add_bucket_column(table: Table, key: HashKey, name: str) -> None:
    """Adds the column with its constraint, if it is not there yet; operations fill it.

    Raises:
        QueryError: Delta refused it.
    """
    if name in table.snapshot().schema:
        return
    alter = f"ALTER TABLE {table.sql_name}"
    try:
        table.spark.sql(f"{alter} ADD COLUMNS ({quote(name)} INT)")
        constraint = quote(_constraint(name))
        table.spark.sql(f"{alter} ADD CONSTRAINT {constraint} CHECK ({_check(name, key)})")
    except Exception as error:
        raise QueryError(spark_message(error)) from error


def _constraint(name: str) -> str:
    return f"mirrorlake_{name.encode().hex()}"


def _check(name: str, key: HashKey) -> str:
    return f"{quote(name)} IS NULL OR {quote(name)} = {bucket_sql(key.column, key)}"
