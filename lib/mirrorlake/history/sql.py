"""Queries over a lake's tables by name, at any version or moment.

Names are resolved per lake, to Delta tables by path, so two lakes in one session never meet. The
text is changed only where sqlglot's parser finds a table; strings and comments stay untouched.
Besides Spark's `VERSION AS OF 2` these work: `name@v2`, `name@20240428091500000`
(yyyyMMddHHmmssSSS, UTC), `name AS OF VERSION 2`, `name AS OF TIMESTAMP '…'`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import cast

import sqlglot
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from mirrorlake.delta.timestamps import parse_utc_timestamp
from mirrorlake.errors import InvalidNameError, MirrorlakeError, QueryError, UsageError
from mirrorlake.names import TableName
from mirrorlake.spark.messages import spark_message
from mirrorlake.spark.sql import delta_name, literal, quote

Finder = Callable[[TableName], str | None]
Checker = Callable[[TableName, int | datetime], None]
Chooser = Callable[[TableName], list[str] | None]
Evaluator = Callable[[str], datetime | None]
Edit = tuple[int, int, str]
_NAME_TOKENS = (TokenType.VAR, TokenType.IDENTIFIER)


def run_query(
    spark: SparkSession,
    query: str,
    find: Finder,
    check: Checker = lambda name, when: None,
    columns: Chooser = lambda name: None,
) -> DataFrame:
    """Runs a query.

    Args:
        spark: the session.
        query: one SQL statement.
        find: the full path of a lake's table, or None if there is none of that name.
        check: refuses a version or moment of a table that can't be read.
        columns: the columns that may be seen of a table that hides some; None for all.

    Raises:
        QueryError: Spark refused it.
        VersionError: a version or moment is out of reach.
    """

    def evaluate(expression: str) -> datetime | None:
        row = spark.sql(f"SELECT unix_micros(CAST({expression} AS TIMESTAMP))").first()
        if row is None or row[0] is None:
            return None
        return datetime.fromtimestamp(row[0] / 1e6, timezone.utc)

    try:
        return spark.sql(resolve_tables(query, find, check, evaluate, columns))
    except MirrorlakeError:
        raise
    except Exception as error:
        raise QueryError(spark_message(error)) from error


def resolve_tables(
    query: str,
    find: Finder,
    check: Checker = lambda name, when: None,
    evaluate: Evaluator = lambda expression: None,
    columns: Chooser = lambda name: None,
) -> str:
    """The query with the lake's tables by path, and every shorthand as Spark writes it.

    Args:
        query: one SQL statement.
        find: the full path of a lake's table, or None.
        check: refuses a version or moment of a table that can't be read.
        evaluate: works out a moment that is not written outright; None leaves it to Spark.
        columns: the columns that may be seen of a table that hides some; None for all.
    """
    text = expand_shorthands(query)
    try:
        trees = sqlglot.parse(text, read="spark")
    except SqlglotError:
        return text  # Spark's own parser explains best what is wrong
    tokens = sqlglot.tokenize(text, read="spark")
    edits: list[Edit] = []
    for tree in trees:
        for node in tree.find_all(exp.Table) if tree is not None else ():
            edits += _edit_table(node, text, tokens, find, check, evaluate, columns)
    return apply_edits(text, edits)


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
    return apply_edits(query, edits)


def _at_clause(text: str) -> str | None:
    if re.fullmatch(r"[vV]\d+", text):
        return f"VERSION AS OF {text[1:]}"
    if re.fullmatch(r"\d{17}", text, re.ASCII):
        try:
            moment = parse_utc_timestamp(text)
        except UsageError as error:
            raise QueryError(
                f"@{text} is no moment.", hint="write yyyyMMddHHmmssSSS, or @v and a version."
            ) from error
        return f"TIMESTAMP AS OF {literal(moment.isoformat(timespec='milliseconds'))}"
    return None


def _edit_table(
    node: exp.Table,
    text: str,
    tokens: list[Token],
    find: Finder,
    check: Checker,
    evaluate: Evaluator,
    columns: Chooser,
) -> list[Edit]:
    parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
    if not 1 <= len(parts) <= 2 or len(parts) != len(node.parts) or is_cte(node):
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
    after = end
    if version := node.args.get("version"):
        first, after = _span_of_version(tokens, end)
        when = _literal_version(version)
        if when is None and str(version.this).upper() == "TIMESTAMP":
            # Spark itself works moments out only for tables of a catalog, not for paths.
            when = evaluate(text[first:after])
            if when is not None:
                edits.append((first, after, literal(when.isoformat())))
        if when is not None:
            check(name, when)
    seen = columns(name) if node.find_ancestor(exp.Select) else None
    if seen is not None:
        edits[0] = (start, end, f"(SELECT {', '.join(map(quote, seen))} FROM {delta_name(path)}")
        edits.append((after, after, ")"))
    if not node.alias and node.find_ancestor(exp.Select):
        # Columns may be qualified by the table's name.
        edits.append((after, after, f" AS {quote(parts[-1].name)}"))
    return edits


def _literal_version(version: exp.Expression | None) -> int | datetime | None:
    """The version or moment that a clause names outright; None for what Spark has to work out."""
    value = version.expression if version is not None else None
    if not isinstance(value, exp.Literal):
        return None
    if version is not None and str(version.this).upper() == "VERSION":
        return int(value.name) if value.name.isdecimal() else None
    try:
        return parse_utc_timestamp(value.name)
    except UsageError:
        return None


def is_cte(node: exp.Table) -> bool:
    """Whether a name means a common table expression of the query, not a table."""
    if node.db:
        return False
    inside: exp.Expression | None = None  # the CTE in whose own text the name stands
    scope = node.parent
    while scope is not None:
        if isinstance(scope, exp.CTE):
            inside = scope
        clause = scope.args.get("with_") or scope.args.get("with")
        if clause:
            for cte in clause.expressions:
                if cte is inside and not clause.args.get("recursive"):
                    break  # it sees only those before it
                if cte.alias.lower() == node.name.lower():
                    return True
        scope = scope.parent
    return False


def _span_of_version(tokens: list[Token], start: int) -> tuple[int, int]:
    """Where the value of `VERSION AS OF …` or `TIMESTAMP AS OF …` begins and ends.

    It is one value, or a sum of values.
    """
    rest = [token for token in tokens if token.start >= start]
    words = [token.text.upper() for token in rest] + [""]
    index = words.index("OF") + 1
    first = rest[index].start
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
            return first, rest[index].end + 1
        index += 2


def _closing(words: list[str], opening: int) -> int:
    depth = 0
    for index in range(opening, len(words)):
        depth += {"(": 1, ")": -1}.get(words[index], 0)
        if depth == 0:
            return index
    return opening


def apply_edits(text: str, edits: list[Edit]) -> str:
    """The text with stretches replaced: from, to, and what stands there instead."""
    # Of two that begin at one place the later one comes out behind the other.
    ordered = sorted(edits, key=lambda edit: edit[:2])
    for start, end, new in ordered[::-1]:
        text = text[:start] + new + text[end:]
    return text
