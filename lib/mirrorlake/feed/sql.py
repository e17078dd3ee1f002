"""`table_changes('t', 0, 10)` over a lake's tables.

Names are resolved per lake and the ends checked as everywhere, then Delta's own function by path
stands in the text. What is no table of the lake is left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot.tokenizer_core import TokenType

from mirrorlake.errors import InvalidNameError, UsageError
from mirrorlake.feed.changes import readable_span
from mirrorlake.feed.log import read_versions
from mirrorlake.feed.schema import RESERVED
from mirrorlake.history.sql import Edit, Statement, closing
from mirrorlake.names import TableName
from mirrorlake.spark.sql import literal
from mirrorlake.table import Table


def resolve_feeds(
    statement: Statement, open_table: Callable[[TableName], Table | None]
) -> list[Edit]:
    """What is to be changed so that every `table_changes` of a lake's table reads by path.

    Args:
        statement: the query.
        open_table: the lake's table of a name, or None.

    Raises:
        FeedError: the feed doesn't hold what is asked for.
        UsageError: the arguments make no sense.
    """
    edits: list[Edit] = []
    tokens = statement.tokens
    for index, token in enumerate(tokens[:-3]):
        called = token.text.lower() == "table_changes" and token.token_type != TokenType.STRING
        if not called or tokens[index + 1].token_type != TokenType.L_PAREN:
            continue
        name, last = tokens[index + 2], closing(tokens, index + 1)
        if name.token_type != TokenType.STRING or last == index + 1:
            continue
        try:
            table = open_table(TableName.parse(name.text))
        except InvalidNameError:
            continue
        if table is not None:
            ends = _arguments(statement, index + 2, last)[1:]
            edits.append((token.start, tokens[last].end + 1, _relation(table, ends)))
    return edits


def _arguments(statement: Statement, first: int, last: int) -> list[str]:
    """The texts between a call's commas, from its first token up to its closing parenthesis."""
    tokens, found, start, index = statement.tokens, [], first, first
    while index <= last:
        kind = tokens[index].token_type
        if kind == TokenType.L_PAREN:
            index = closing(tokens, index)
        elif (kind == TokenType.COMMA or index == last) and index > start:
            found.append(statement.text[tokens[start].start : tokens[index - 1].end + 1])
            start = index + 1
        index += 1
    return found


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
