"""SQL expressions of PostgreSQL for the digests and texts of `mirrorlake.landing.digests`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psycopg
import pyarrow as pa
import pyarrow.types as pt

from mirrorlake.errors import SourceError
from mirrorlake.landing.digests import EPOCH_2000, LONGEST, NEXT, NULL, digest_values
from mirrorlake_sources.postgres.catalog import Column, Connection
from mirrorlake_sources.postgres.connection import ident
from mirrorlake_sources.postgres.gather import printed

_PLAIN = 6  # digits after the point up to which Arrow prints a decimal without an exponent
_TEXTS = (25, 1043)  # text and varchar: a cast is faster than `printed`, and returns the same


def check_digests(sql: Connection) -> None:
    """Check that the server computes the digests of `digest_values`.

    Raises:
        SourceError: the server is older than PostgreSQL 14, or its processor is big-endian.
    """
    batch = pa.record_batch({"text": ["mirrorlake"]})
    query = "SELECT " + digest_of(["'mirrorlake'::bytea"])
    with suppress(psycopg.errors.UndefinedFunction):
        found = sql.execute(query.encode()).fetchall()
        if found == [(int(one),) for one in digest_values(batch, ["text"])]:
            return
    raise SourceError(
        "The server does not compute the checksums of a verification. They need PostgreSQL 14 or"
        " newer on a little-endian processor (x86, ARM).",
        hint="upgrade the server; or write a manifest with publisher.manifest(rows), and run"
        " reconcile.",
    )


def joined_texts(columns: Iterable[Column]) -> str:
    """Return an expression for the bytes of `join_columns`, whatever the server's encoding."""
    null, following = (f"'\\x{mark.encode().hex()}'::bytea" for mark in (NULL, NEXT))
    texts = (f"coalesce(convert_to({canonical_text(one)}, 'UTF8'), {null})" for one in columns)
    return f" || {following} || ".join(texts)


def canonical_text(column: Column) -> str:
    """Return an expression for the canonical text of a column, as the lake stores its values."""
    kind, arrow = column.kind, column.kind.arrow
    value = kind.selected(ident(column.name))
    if pt.is_string(arrow):
        return f"{value}::text" if kind.oid in _TEXTS else printed(column.name)
    if pt.is_binary(arrow):
        return f"encode({value}, 'hex')"
    if pt.is_date(arrow):
        return f"{_days(value)}::text"
    if pt.is_timestamp(arrow):
        bits = f"('x' || encode({_sent(arrow, value)}, 'hex'))::bit(64)::bigint"
        return f"({bits} + {EPOCH_2000})::text"
    if pt.is_floating(arrow):
        sent = f"float8send({_plain_float(value)})"
        return f"('x' || encode({sent}, 'hex'))::bit(64)::bigint::text"
    if pt.is_decimal(arrow) and arrow.scale > _PLAIN:
        # Arrow prints small numbers with an exponent.
        digits = f"trunc(abs({value}) * 1e{arrow.scale})::text"
        small = (
            f"concat(CASE WHEN {value} < 0 THEN '-' END, left({digits}, 1),"
            f" CASE WHEN length({digits}) > 1 THEN '.' || substr({digits}, 2) END,"
            f" 'E', length({digits}) - 1 - {arrow.scale})"
        )
        limit = f"abs({value}) < 1e-{_PLAIN}"
        return f"CASE WHEN {limit} THEN {small} ELSE {value}::text END"
    return f"({value})::text"


def digest_of(values: Iterable[str]) -> str:
    """Return an expression for the digest of a row, see `digest_values`."""
    return f"hashint4extended(0, hash_record_extended(ROW({', '.join(values)}), 0) | 1)"


def hashed_bytes(column: Column) -> str:
    """Return an expression for the bytes of a value that are hashed."""
    arrow, value = column.kind.arrow, column.kind.selected(ident(column.name))
    if pt.is_integer(arrow):
        return f"int8send(({value})::bigint)"
    if pt.is_boolean(arrow):
        return f"int8send({value}::int::bigint)"
    if pt.is_date(arrow):
        return f"int8send({_days(value)}::bigint)"
    if pt.is_timestamp(arrow):
        return _sent(arrow, value)
    if pt.is_floating(arrow):
        return f"float8send({_plain_float(value)})"
    text = f"convert_to({canonical_text(column)}, 'UTF8')"
    return (
        f"CASE WHEN length({text}) > {LONGEST} THEN convert_to(md5({text}), 'UTF8') ELSE {text} END"
    )


def _days(value: str) -> str:
    return f"(({value}) - date '1970-01-01')"


def _sent(arrow: pa.DataType, value: str) -> str:
    """Return an expression for the bytes of the microseconds from 2000 to a timestamp."""
    return f"{'timestamptz_send' if arrow.tz else 'timestamp_send'}({value})"


def _plain_float(value: str) -> str:
    """Return an expression for a double, with only positive zero and one NaN."""
    return f"CASE WHEN {value} = 'NaN' THEN 'NaN' ELSE {value}::float8 + 0 END"


def range_value(column: Column) -> str:
    """Return an expression that Python orders in the same way: an integer, or bytes of a text."""
    if pt.is_date(column.kind.arrow):
        return _days(column.kind.selected(ident(column.name)))
    if is_ordered(column):
        return f"({ident(column.name)})::bigint"
    return f"convert_to({canonical_text(column)}, 'UTF8')"


def is_ordered(column: Column) -> bool:
    """Return whether the canonical texts of a column are integers in the order of its values."""
    return bool(pt.is_integer(column.kind.arrow) or pt.is_date(column.kind.arrow))
