"""Where a statement names tables, and at which versions.

The text is changed only where sqlglot's parser finds a table; strings and comments stay untouched.
Besides Spark's `VERSION AS OF 2` these work: `name@v2`, `name@20240428091500000`
(yyyyMMddHHmmssSSS, UTC), `name AS OF VERSION 2`, `name AS OF TIMESTAMP '…'`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from mirrorlake.delta.timestamps import parse_utc_timestamp
from mirrorlake.errors import InvalidNameError, QueryError, UsageError
from mirrorlake.names import TableName
from mirrorlake.spark.sql import delta_name, literal, quote

When = int | datetime
Edit = tuple[int, int, str]


_SYNTAX = ("CAST", "CEIL", "EXTRACT", "FLOOR", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM")


class AsWritten(Spark):
    """Spark's SQL with every function call kept as it is written, under its own name."""

    class Parser(SparkParser):
        """Knows functions of odd syntax only, and those that need no parentheses."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}  # in Spark `array(1, 2)[0]` is an element
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parse
            for name, parse in SparkParser.FUNCTION_PARSERS.items()
            if name.removeprefix("TRY_") in _SYNTAX
        }
        NO_PAREN_FUNCTIONS: ClassVar[dict[TokenType, Any]] = {
            **SparkParser.NO_PAREN_FUNCTIONS,
            TokenType.CURRENT_CATALOG: exp.CurrentCatalog,
            TokenType.CURRENT_SCHEMA: exp.CurrentSchema,
            TokenType.CURRENT_TIME: exp.CurrentTime,
            TokenType.LOCALTIMESTAMP: exp.Localtimestamp,
        }

        def _parse_interval(self, *args: Any, **options: Any) -> Any:
            found = super()._parse_interval(*args, **options)
            # One interval of two units becomes a sum, and may stand behind a minus.
            return exp.Paren(this=found) if isinstance(found, exp.Add) else found


DIALECT = AsWritten()


@dataclass(frozen=True)
class Relation:
    """What a name means.

    Attributes:
        path: the Delta table's full path.
        columns: those that may be seen, where it hides some; None for all.
        check: refuses a version or moment that can't be read.
    """

    path: str
    columns: list[str] | None = None
    check: Callable[[When], None] = lambda when: None


@dataclass(frozen=True)
class Statement:
    """A query's text, shorthands written out.

    Attributes:
        text: the query.
        tokens: its tokens; none if it can't be cut into tokens.
        trees: sqlglot's, one for each statement; none if its parser does not know the query.
        error: what sqlglot says against it, if so.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    trees: tuple[exp.Expr, ...] = ()
    error: SqlglotError | None = None


@dataclass(frozen=True)
class NamedTable:
    """A table where a statement names it.

    Attributes:
        name: which table.
        node: the name in the tree.
        start: where it begins in the text.
        end: where it ends.
    """

    name: TableName
    node: exp.Table
    start: int
    end: int

    @property
    def alias(self) -> str:
        """What its columns are qualified by."""
        return self.node.alias or self.node.name


def parse_statement(query: str) -> Statement:
    """Parses a query; what sqlglot can't parse keeps its text, and Spark says what is wrong.

    Raises:
        QueryError: a shorthand's moment is none.
    """
    text, tokens = query, []
    try:
        tokens = DIALECT.tokenize(query)
        if edits := _shorthands(tokens):
            text = apply_edits(query, edits)
            tokens = DIALECT.tokenize(text)
        trees = DIALECT.parser().parse(tokens, text)
    except SqlglotError as error:
        return Statement(text, tuple(tokens), error=error)
    return Statement(text, tuple(tokens), tuple(tree for tree in trees if tree is not None))


def _shorthands(tokens: list[Token]) -> list[Edit]:
    """Writes `@v2`, `@yyyyMMddHHmmssSSS` and `AS OF VERSION` as Spark's parser knows them."""
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
    return edits


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


def named_tables(tree: exp.Expr) -> Iterator[NamedTable]:
    """The names in a statement that may mean tables of the lake, in no particular order."""
    for node in tree.find_all(exp.Table):
        parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
        if not 1 <= len(parts) <= 2 or len(parts) != len(node.parts) or _is_cte(node):
            continue
        if node.find_ancestor(exp.Hint) or any("start" not in part.meta for part in parts):
            continue
        try:
            name = TableName(parts[0].name if len(parts) == 2 else None, parts[-1].name)
        except InvalidNameError:
            continue
        yield NamedTable(name, node, parts[0].meta["start"], parts[-1].meta["end"] + 1)


def _is_cte(node: exp.Table) -> bool:
    """Whether a name means a common table expression of the query, not a table."""
    if node.db:
        return False
    inside: exp.Expr | None = None  # the CTE in whose own text the name stands
    scope = node.parent
    while scope is not None:
        if isinstance(scope, exp.CTE):
            inside = scope
        if clause := scope.args.get("with_"):
            for cte in clause.expressions:
                if cte is inside and not clause.args.get("recursive"):
                    break  # it sees only those before it
                if cte.alias.lower() == node.name.lower():
                    return True
        scope = scope.parent
    return False


def resolve_tables(
    statement: Statement,
    find: Callable[[TableName], Relation | None],
    evaluate: Callable[[str], datetime | None] = lambda expression: None,
) -> list[Edit]:
    """What is to be changed in a statement's text so that it reads tables by path.

    Args:
        statement: the query.
        find: what a name means, or None.
        evaluate: works out a moment that is not written outright; None leaves it to Spark.
    """
    edits: list[Edit] = []
    for tree in statement.trees:
        for named in named_tables(tree):
            relation = find(named.name)
            if relation is not None:
                edits += _table_edits(statement, named, relation, evaluate)
    return edits


def _table_edits(
    statement: Statement,
    named: NamedTable,
    relation: Relation,
    evaluate: Callable[[str], datetime | None],
) -> list[Edit]:
    start, end, node = named.start, named.end, named.node
    path = delta_name(relation.path)
    edits: list[Edit] = [(start, end, path)]
    after = end
    if version := node.args.get("version"):
        first, after = _span_of_version(statement.tokens, end)
        when = _literal_version(version)
        if when is None and str(version.this).upper() == "TIMESTAMP":
            # Spark itself works moments out only for tables of a catalog, not for paths.
            when = evaluate(statement.text[first:after])
            if when is not None:
                edits.append((first, after, literal(when.isoformat())))
        if when is not None:
            relation.check(when)
    if not node.find_ancestor(exp.Select):
        return edits
    if relation.columns is not None:
        edits[0] = (start, end, f"(SELECT {', '.join(map(quote, relation.columns))} FROM {path}")
        edits.append((after, after, ")"))
    if not node.alias:  # columns may be qualified by the table's name
        edits.append((after, after, f" AS {quote(node.name)}"))
    return edits


def _literal_version(version: exp.Expr) -> When | None:
    """The version or moment that a clause names outright; None for what Spark has to work out."""
    value = version.expression
    if not isinstance(value, exp.Literal):
        return None
    if str(version.this).upper() == "VERSION":
        return int(value.name) if value.name.isdecimal() else None
    try:
        return parse_utc_timestamp(value.name)
    except UsageError:
        return None


def _span_of_version(tokens: tuple[Token, ...], start: int) -> tuple[int, int]:
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
            index = closing(rest, index)
        else:
            while words[index + 1] == ".":
                index += 2
            if words[index + 1] == "(":
                index = closing(rest, index + 1)
        if words[index + 1] not in ("+", "-"):
            return first, rest[index].end + 1
        index += 2


def closing(tokens: Sequence[Token], opening: int) -> int:
    """The place of the parenthesis that closes the one at a place; that place if none does."""
    depth = 0
    for index in range(opening, len(tokens)):
        kind = tokens[index].token_type
        depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
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
