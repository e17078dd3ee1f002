"""`table_changes('t', 0, 10)` over a lake's tables.

Names are resolved per lake and the ends checked as everywhere, then Delta's own function by path
stands in the text. What is no table of the lake is left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlglot
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from mirrorlake.delta.commits import read_versions
from mirrorlake.errors import InvalidNameError, UsageError
from mirrorlake.feed.changes import readable_span
from mirrorlake.feed.schema import RESERVED
from mirrorlake.names import TableName
from mirrorlake.spark.sql import literal
from mirrorlake.table import Table

Opener = Callable[[TableName], "Table | None"]
_FUNCTION = "table_changes"


def resolve_feeds(query: str, open_table: Opener) -> str:
    """The query with every `table_changes` of a lake's table by path.

    Args:
        query: one SQL statement.
        open_table: the lake's table of a name, or None.

    Raises:
        FeedError: the feed doesn't hold what is asked for.
        UsageError: the arguments make no sense.
    """
    if _FUNCTION not in query.lower():
        return query
    try:
        tokens = sqlglot.tokenize(query, read="spark")
    except SqlglotError:
        return query  # Spark's own parser explains best what is wrong
    text = query
    for index in reversed(range(len(tokens) - 2)):
        opening = tokens[index + 1]
        called = tokens[index].text.lower() == _FUNCTION and opening.text == "("
        if not called or tokens[index].token_type == TokenType.STRING:
            continue
        parts, closing = _arguments(tokens, index + 2)
        if closing is None or not parts or parts[0][0].token_type != TokenType.STRING:
            continue
        try:
            table = open_table(TableName.parse(parts[0][0].text))
        except InvalidNameError:
            continue
        if table is None:
            continue
        ends = [query[part[0].start : part[-1].end + 1] for part in parts[1:]]
        text = text[: tokens[index].start] + _relation(table, ends) + text[closing.end + 1 :]
    return text


def _arguments(tokens: list[Token], index: int) -> tuple[list[list[Token]], Token | None]:
    """The arguments' tokens, and the parenthesis that closes the call."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens[index:]:
        if token.text == ")" and depth == 0:
            return [part for part in parts if part], token
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [], None


def _relation(table: Table, ends: list[str]) -> str:
    if not 1 <= len(ends) <= 2:
        raise UsageError(
            f"table_changes('{table.name}') has {len(ends)} ends.",
            hint="write table_changes('name', start[, end]).",
        )
    start, end = (_value(table, text) for text in (ends * 2)[:2])
    timeline = read_versions(table.storage, table.name.table_path)
    span = readable_span(table, timeline, start, end if len(ends) == 2 else None)
    if span.is_empty:
        kinds = ("STRING", "BIGINT", "TIMESTAMP")
        nulls = [f"CAST(NULL AS {k}) AS {n}" for n, k in zip(RESERVED, kinds, strict=True)]
        return f"(SELECT *, {', '.join(nulls)} FROM {table.sql_name} WHERE false)"
    return f"table_changes_by_path({literal(table.path)}, {span.start}, {span.end})"


def _value(table: Table, text: str) -> str:
    """An end as text: a number, or a moment in the session's time zone."""
    (row,) = table.spark.sql(f"SELECT CAST(({text}) AS STRING)").toArrow().to_pylist()
    return str(next(iter(row.values())))
