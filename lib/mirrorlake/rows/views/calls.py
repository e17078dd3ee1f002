"""The function calls in a piece of a query, and groups' expressions written over what is kept."""

from __future__ import annotations

from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from mirrorlake.history.sql import apply_edits
from mirrorlake.rows.views.clauses import Piece, closing
from mirrorlake.rows.views.functions import AGGREGATES, BARE

HIDDEN = "__mirrorlake_"
KEY, AGGREGATE = f"{HIDDEN}key_", f"{HIDDEN}aggregate_"
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_AFTER = ("IGNORE", "RESPECT", "NULLS", "IGNORE NULLS", "RESPECT NULLS", "WITHIN", "WITHIN GROUP")


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        name: the function, in small letters.
        first: its first token.
        last: its last, what belongs to it included: FILTER, OVER.
        arguments: between the parentheses.
        distinct: whether it takes each value once.
        where: FILTER's condition.
        over: what stands in OVER's parentheses; an empty tuple for OVER ().
        known: whether it may be one of Spark's own by its form.
    """

    name: str
    first: int
    last: int
    arguments: tuple[Piece, ...]
    distinct: bool = False
    where: Piece | None = None
    over: Piece | None = None
    is_window: bool = False
    known: bool = True

    @property
    def is_aggregate(self) -> bool:
        """Whether it makes one value of many rows."""
        return self.name in AGGREGATES and not self.is_window


def find_calls(piece: Piece) -> list[Call]:
    """All calls in a piece, those inside of others too, in the order of their names."""
    found = []
    tokens = piece.tokens
    for index, token in enumerate(tokens):
        qualified = index > 0 and tokens[index - 1].text == "."
        opens = index + 1 < len(tokens) and tokens[index + 1].text == "("
        if token.token_type == TokenType.STRING or not (token.text[:1].isalpha() or qualified):
            continue
        if opens:
            found.append(_call(piece, index, qualified))
        elif token.text.lower() in BARE and not qualified and token.token_type not in _NAMES:
            found.append(Call(token.text.lower(), index, index, ()))
    return found


def _call(piece: Piece, index: int, qualified: bool) -> Call:
    tokens = piece.tokens
    last = closing(tokens, index + 1)
    first_argument = index + 2
    distinct = tokens[first_argument].text.upper() in ("DISTINCT", "ALL") and last > first_argument
    is_distinct = distinct and tokens[first_argument].text.upper() == "DISTINCT"
    first_argument += distinct
    inside = piece.part(first_argument, last - 1).commas() if last > first_argument else []
    where = over = None
    is_window = False
    while last + 1 < len(tokens):
        word = tokens[last + 1].text.upper()
        opens = last + 2 < len(tokens) and tokens[last + 2].text == "("
        if word in ("FILTER", "WITHIN GROUP", "OVER") and opens:
            end = closing(tokens, last + 2)
            between = piece.part(last + 3, end - 1) if end > last + 3 else None
            if word == "FILTER" and between is not None:
                where = between.part(1, len(between.tokens) - 1)  # without WHERE
            elif word == "OVER":
                over, is_window = between, True
            last = end
        elif word == "OVER":
            is_window, last = True, last + 2
        elif word in _AFTER:
            last += 1
        else:
            break
    simple = tokens[index].token_type in _NAMES
    return Call(
        tokens[index].text.lower(),
        index,
        last,
        tuple(inside),
        is_distinct,
        where,
        over,
        is_window,
        known=not (simple and qualified),
    )


def partition_of(call: Call) -> tuple[Piece, ...]:
    """What a window is partitioned by."""
    if call.over is None or call.over.tokens[0].text.upper() != "PARTITION BY":
        return ()
    piece = call.over
    last, depth = len(piece.tokens) - 1, 0
    for index, token in enumerate(piece.tokens):
        depth += (token.text == "(") - (token.text == ")")
        if not depth and token.text.upper() in ("ORDER BY", "SORT BY", "ROWS", "RANGE"):
            last = index - 1
            break
    return tuple(piece.part(1, last).commas())


def over_state(item: Piece, keys: list[Piece], aggregates: list[Piece]) -> str | None:
    """A selected expression over the columns that are kept: the keys, and the aggregates' values.

    Args:
        item: as written.
        keys: what the query groups by.
        aggregates: the distinct calls so far; new ones are added.

    Returns:
        None if it has columns besides these.
    """
    edits = []
    index, tokens = 0, item.tokens
    calls = {call.first: call for call in find_calls(item) if call.is_aggregate}
    while index < len(tokens):
        last, name = index, ""
        if call := calls.get(index):
            piece, last = item.part(call.first, call.last), call.last
            alike = [n for n, one in enumerate(aggregates) if one.words == piece.words]
            if not alike:
                aggregates.append(piece)
            name = f"{AGGREGATE}{alike[0] if alike else len(aggregates) - 1}"
        elif found := key_at(item, index, keys):
            number, last = found
            name = f"{KEY}{number}"
        if name:
            start = tokens[index].start - tokens[0].start
            end = tokens[last].end + 1 - tokens[0].start
            edits.append((start, end, name))
        index = last + 1
    text = apply_edits(item.text, edits)
    try:
        tree = sqlglot.parse_one(f"SELECT {text}", read="spark")
    except SqlglotError:
        return None
    columns = tree.find_all(exp.Column, exp.Star)
    return text if all(column.name.startswith(HIDDEN) for column in columns) else None


def key_at(item: Piece, index: int, keys: list[Piece]) -> tuple[int, int] | None:
    """Which key stands at a place of an expression, and where it ends."""
    tokens, words = item.tokens, item.words
    if index and words[index - 1] == ".":
        return None
    found = [
        (len(key.words), number)
        for number, key in enumerate(keys)
        if words[index : index + len(key.words)] == key.words
    ]
    for length, number in sorted(found, reverse=True):
        if words[index + length : index + length + 1] not in ((".",), ("(",)):
            return number, index + length - 1
    # `f.origin` and `origin` are one column where only one key ends so.
    if tokens[index].token_type not in _NAMES:
        return None
    last = index
    while words[last + 1 : last + 2] == (".",) and last + 2 < len(words):
        last += 2
    if words[last + 1 : last + 2] == ("(",):
        return None
    alike = [n for n, key in enumerate(keys) if _is_column(key) and key.words[-1] == words[last]]
    if len(alike) == 1 and 1 in (last - index + 1, len(keys[alike[0]].words)):
        return alike[0], last
    return None


def _is_column(key: Piece) -> bool:
    names = key.tokens[::2]
    dots = key.words[1::2]
    return all(token.token_type in _NAMES for token in names) and set(dots) <= {"."}
