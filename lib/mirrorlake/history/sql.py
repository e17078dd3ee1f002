"""Queries over a lake's tables by name, at any version or moment.

Names are resolved per lake, to Delta tables by path, so two lakes in one session never meet. The
text is changed only where sqlglot's parser finds a table; strings and comments stay untouched.
Besides Spark's `VERSION AS OF 2` these work: `name@v2`, `name@20240428091500000`
(yyyyMMddHHmmssSSS, UTC), `name AS OF VERSION 2`, `name AS OF TIMESTAMP '…'`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, cast

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from mirrorlake.errors import InvalidNameError, QueryError
from mirrorlake.names import TableName
from mirrorlake.spark.messages import spark_message
from mirrorlake.spark.sql import delta_name, literal, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Finder = Callable[[TableName], str | None]
Edit = tuple[int, int, str]
_NAME_TOKENS = (TokenType.VAR, TokenType.IDENTIFIER)


def run_query(spark: SparkSession, query: str, find: Finder) -> DataFrame:
    """Runs a query.

    Args:
        spark: the session.
        query: one SQL statement.
        find: the full path of a lake's table, or None if there is none of that name.

    Raises:
        QueryError: Spark refused it.
    """
    try:
        return spark.sql(resolve_tables(query, find))
    except Exception as error:
        raise QueryError(spark_message(error)) from error


def resolve_tables(query: str, find: Finder) -> str:
    """The query with the lake's tables by path, and every shorthand as Spark writes it."""
    text = expand_shorthands(query)
    try:
        trees = sqlglot.parse(text, read="spark")
    except SqlglotError:
        return text  # Spark's own parser explains best what is wrong
    tokens = sqlglot.tokenize(text, read="spark")
    edits: list[Edit] = []
    for tree in trees:
        for node in tree.find_all(exp.Table) if tree is not None else ():
            edits += _edit_table(node, tokens, find)
    return _apply(text, edits)


def expand_shorthands(query: str) -> str:
    """Writes `@v2`, `@yyyyMMddHHmmssSSS` and `AS OF VERSION` as Spark's parser knows them."""
    try:
        tokens = sqlglot.tokenize(query, read="spark")
    except SqlglotError:
        return query
    edits: list[Edit] = []
    for index, token in enumerate(tokens):
        following = tokens[index + 1 : index + 4]
        if token.token_type == TokenType.PARAMETER and index and following:
            adjacent = tokens[index - 1].end + 1 == token.start == following[0].start - 1
            if adjacent and (clause := _at_clause(following[0].text)):
                edits.append((token.start, following[0].end + 1, f" {clause}"))
        words = [token.text.upper(), *(t.text.upper() for t in following[:2])]
        before = tokens[index - 1].text.upper() if index else ""
        spelled = words[:2] == ["AS", "OF"] and words[2:] in (["VERSION"], ["TIMESTAMP"])
        if spelled and before not in ("VERSION", "TIMESTAMP"):
            edits.append((token.start, following[1].end + 1, f"{words[2]} AS OF"))
    return _apply(query, edits)


def _at_clause(text: str) -> str | None:
    if re.fullmatch(r"[vV]\d+", text):
        return f"VERSION AS OF {text[1:]}"
    if re.fullmatch(r"\d{17}", text):
        try:
            moment = datetime.strptime(text + "000", "%Y%m%d%H%M%S%f")
        except ValueError as error:
            raise QueryError(
                f"@{text} is no moment.", hint="write yyyyMMddHHmmssSSS, or @v and a version."
            ) from error
        return f"TIMESTAMP AS OF {literal(moment.isoformat(timespec='milliseconds') + 'Z')}"
    return None


def _edit_table(node: exp.Table, tokens: list[Token], find: Finder) -> list[Edit]:
    parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
    if not 1 <= len(parts) <= 2 or len(parts) != len(node.parts) or _is_cte(node):
        return []
    if any("start" not in part.meta for part in parts):
        return []
    try:
        name = TableName(parts[0].name if len(parts) == 2 else None, parts[-1].name)
    except InvalidNameError:
        return []
    path = find(name)
    if path is None:
        return []
    start, end = parts[0].meta["start"], cast("int", parts[-1].meta["end"]) + 1
    edits: list[Edit] = [(start, end, delta_name(path))]
    if not node.alias and node.find_ancestor(exp.Select):
        # Columns may be qualified by the table's name.
        after = _end_of_version(tokens, end) if node.args.get("version") else end
        edits.append((after, after, f" AS {quote(parts[-1].name)}"))
    return edits


def _is_cte(node: exp.Table) -> bool:
    if node.db:
        return False
    scope = node.parent
    while scope is not None:
        clause = scope.args.get("with_") or scope.args.get("with")
        if clause and any(cte.alias.lower() == node.name.lower() for cte in clause.expressions):
            return True
        scope = scope.parent
    return False


def _end_of_version(tokens: list[Token], start: int) -> int:
    """Where `VERSION AS OF …` or `TIMESTAMP AS OF …` ends: after one value, or a sum of values."""
    rest = [token for token in tokens if token.start >= start]
    words = [token.text.upper() for token in rest] + [""]
    index = words.index("OF") + 1
    while True:
        index += words[index] == "-"
        if words[index] == "INTERVAL":
            index += 2  # the number and its unit
        elif words[index] in ("TIMESTAMP", "DATE") and words[index + 1] != "(":
            index += 1  # a typed literal
        elif words[index] == "(":
            index = _closing(words, index)
        else:
            while words[index + 1] == ".":
                index += 2
            if words[index + 1] == "(":
                index = _closing(words, index + 1)
        if words[index + 1] not in ("+", "-"):
            return rest[index].end + 1
        index += 2


def _closing(words: list[str], opening: int) -> int:
    depth = 0
    for index in range(opening, len(words)):
        depth += {"(": 1, ")": -1}.get(words[index], 0)
        if depth == 0:
            return index
    return opening


def _apply(text: str, edits: list[Edit]) -> str:
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text
