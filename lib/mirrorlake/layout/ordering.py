"""Which order of a file's rows makes it smallest: a portfolio of orders, scored on encoded bytes.

No order wins on all data, and the fewest runs are not the fewest bytes. So each candidate is tried
on a sample that is really encoded, as the file would be, and the smallest wins. The candidates: the
rows as they are; lexicographic by increasing cardinality (Lemire & Kaser, arXiv 0909.1346); a sort
key grown column by column, each time by the column that saves most bytes. A sample is sparser than
its file, so those that come close are compared again on a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Permutation = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int64]
Score = Callable[[pa.Table], int]

NATURAL = "as it is"
LEXICOGRAPHIC = "lexicographic"
GROWN = "sort key"
_SAMPLE_ROWS = 65_536
_FINAL_ROWS = 1_048_576
_BLOCK_ROWS = 512
_CLOSE = 1.1
_FINALISTS = 3
_WIDTH = 6
_DEPTH = 6
_WORTH = 0.998
_CODE_BITS = 62


@dataclass(frozen=True)
class Order:
    """One order of rows.

    Attributes:
        kind: `as it is`, `lexicographic` or `sort key`.
        columns: the columns to sort by, the first one first; rows that are equal in all stay as
            they were.
    """

    kind: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scored:
    """An order and the bytes of the sample in it."""

    order: Order
    size: int


def choose_order(
    rows: pa.Table, score: Score, *, prefix: Sequence[str] = (), fixed: Sequence[str] = ()
) -> tuple[Order, tuple[Scored, ...]]:
    """The order to write a file in, and what was tried on the sample, the smallest first.

    Args:
        rows: all rows of a file.
        score: the bytes of some rows, encoded as the file will be.
        prefix: columns that every order must start with.
        fixed: columns that are carried along and never sorted by.
    """
    tried = try_orders(rows, score, prefix=prefix, fixed=fixed)
    close = [one.order for one in tried if one.size <= tried[0].size * _CLOSE][:_FINALISTS]
    if len(close) == 1 or rows.num_rows <= _SAMPLE_ROWS:
        return close[0], tried
    larger = take_sample(rows, _FINAL_ROWS)
    final = [(score(larger.take(sort_permutation(larger, one.columns))), one) for one in close]
    return min(final, key=lambda pair: pair[0])[1], tried


def try_orders(
    rows: pa.Table, score: Score, *, prefix: Sequence[str] = (), fixed: Sequence[str] = ()
) -> tuple[Scored, ...]:
    """The candidates with their scores on a sample, the smallest first; see `choose_order`."""
    sample = take_sample(rows, _SAMPLE_ROWS)
    names = [name for name in sortable_columns(sample) if name not in fixed]
    codes = {name: column_codes(sample.column(name)) for name in names}

    def scored(kind: str, columns: Sequence[str]) -> Scored:
        order = Order(kind, tuple(columns))
        return Scored(order, score(sample.take(_permutation(codes, columns, sample.num_rows))))

    distinct = {name: int(values.max(initial=0)) + 1 for name, values in codes.items()}
    useful = [
        name
        for name in sorted(codes, key=lambda column: distinct[column])
        if name not in prefix and distinct[name] > 1
    ]
    natural = scored(NATURAL, prefix)
    found = [natural, scored(LEXICOGRAPHIC, [*prefix, *useful])]
    grown = _grow(natural.size, list(prefix), useful, lambda columns: scored(GROWN, columns))
    if grown is not None:
        tail = [name for name in useful if name not in grown.order.columns]
        found += [scored(GROWN, [*grown.order.columns, *tail]), grown]
    return tuple(sorted(found, key=lambda one: one.size))


def _grow(
    size: int, key: list[str], columns: list[str], scored: Callable[[list[str]], Scored]
) -> Scored | None:
    """Adds to the key, each time, the column that makes the sample smallest."""
    best: Scored | None = None
    candidates = columns
    for step in range(_DEPTH):
        tried = [scored([*key, name]) for name in candidates if name not in key]
        if not tried:
            break
        tried.sort(key=lambda one: one.size)
        if tried[0].size > size * _WORTH:
            break
        best, size, key = tried[0], tried[0].size, list(tried[0].order.columns)
        if step == 0:  # what is bad as the first column is no better as a later one
            candidates = [one.order.columns[-1] for one in tried[: _WIDTH + 1]]
    return best


def sort_permutation(rows: pa.Table, columns: Sequence[str]) -> Permutation:
    """The positions of the rows in the order of some columns; a stable sort."""
    codes = {name: column_codes(rows.column(name)) for name in columns}
    return _permutation(codes, columns, rows.num_rows)


def sortable_columns(rows: pa.Table) -> list[str]:
    """Columns whose values have an order: no lists, maps, structs."""
    return [field.name for field in rows.schema if not pa.types.is_nested(field.type)]


def column_codes(values: pa.ChunkedArray) -> Codes:
    """Each value's rank among the column's distinct values; NULL is the last."""
    encoded = values.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    words = encoded.dictionary
    rank = np.empty(len(words) + 1, np.int64)
    rank[pc.sort_indices(words).to_numpy()] = np.arange(len(words))
    rank[-1] = len(words)
    indices = encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
    codes: Codes = rank[indices]
    return codes


def take_sample(rows: pa.Table, count: int) -> pa.Table:
    """Blocks of neighbouring rows from all over the file: what belongs together stays together."""
    if rows.num_rows <= count:
        return rows
    blocks = count // _BLOCK_ROWS
    starts = np.linspace(0, rows.num_rows - _BLOCK_ROWS, blocks).astype(np.int64)
    return rows.take((starts[:, None] + np.arange(_BLOCK_ROWS)).ravel())


def _permutation(codes: dict[str, Codes], columns: Sequence[str], count: int) -> Permutation:
    """A stable sort by several columns, as few machine sorts as their bits allow."""
    order = np.arange(count)
    packed, bits = np.zeros(count, np.int64), 0
    for name in reversed(columns):
        width = max(1, int(codes[name].max(initial=0)).bit_length())
        if bits + width > _CODE_BITS:
            order = order[np.argsort(packed[order], kind="stable")]
            packed, bits = np.zeros(count, np.int64), 0
        packed |= codes[name] << bits
        bits += width
    if bits:
        order = order[np.argsort(packed[order], kind="stable")]
    return order
