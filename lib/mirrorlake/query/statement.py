"""Parses SQL statements: resolves `t@v3`, and replaces tables and functions in the text for Spark.

The text is changed only where sqlglot's parser finds a table, or where a `Command` names one;
strings and comments stay untouched.
Besides Spark's `VERSION AS OF 2`, these forms work: `name@v2`, `name@20240428091500000`
(yyyyMMddHHmmssSSS, UTC), `name AS OF VERSION 2`, `name AS OF TIMESTAMP '…'`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, takewhile
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from mirrorlake.delta.timestamps import parse_utc_timestamp
from mirrorlake.errors import InvalidNameError, QueryError, UsageError
from mirrorlake.names import TableName, quote
from mirrorlake.spark.sql import delta_name, literal

When = int | datetime
Edit = tuple[int, int, str]
# Statements that sqlglot can't parse are left to Spark; a warning would only confuse.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


_SYNTAX = ("CAST", "CEIL", "EXTRACT", "FLOOR", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM")


class AsWritten(Spark):
    """Spark's SQL dialect, in which every function call keeps its own name and spelling."""

    class Tokenizer(Spark.Tokenizer):
        """A tokenizer for all statements; sqlglot's own leaves OPTIMIZE and VACUUM as one text."""

        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            word: kind
            for word, kind in Spark.Tokenizer.KEYWORDS.items()
            if word not in ("OPTIMIZE", "VACUUM")
        }

    class Parser(SparkParser):
        """A parser that interprets only functions with special syntax or without parentheses.

        The `meta` of calls and versions has their `span` in the text; that of versions also has
        the `start` of their clause.
        """

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}  # in Spark `array(1, 2)[0]` is an element
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parse
            for name, parse in SparkParser.FUNCTION_PARSERS.items()
            if name.removeprefix("TRY_") in _SYNTAX
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parse
            for name, parse in SparkParser.NO_PAREN_FUNCTION_PARSERS.items()
            if name != "ANY"  # in Spark `any(x)` is an aggregate
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
            # An interval of two units becomes a sum, which needs parentheses after a minus sign.
            return exp.Paren(this=found) if isinstance(found, exp.Add) else found

        def _parse_function_call(self, *args: Any, **options: Any) -> Any:
            first = self._curr
            found = super()._parse_function_call(*args, **options)
            if isinstance(found, exp.Anonymous):
                found.meta["span"] = (first.start, self._prev.end + 1)
            return found

        def _parse_version(self) -> exp.Version | None:
            first = self._index
            found = super()._parse_version()
            words = [token.text.upper() for token in self._tokens[first : self._index]]
            if found is not None and "OF" in words:  # what follows is the value
                value = self._tokens[first + words.index("OF") + 1]
                found.meta["span"] = (value.start, self._prev.end + 1)
                found.meta["start"] = self._tokens[first].start
            return found


DIALECT = AsWritten()


@dataclass(frozen=True)
class Relation:
    """The Delta table that a name refers to.

    Attributes:
        path: the full path of the table.
        columns: returns the visible columns of a table that hides some, at a version or timestamp
            (None: the newest version); None for all columns.
        check: raises an error for a version or timestamp that cannot be read; returns the one to
            read instead, which is the newest version for a later timestamp.
        version: the version to read if the query names none; None for the newest version.
    """

    path: str
    columns: Callable[[When | None], list[str] | None] = lambda when: None
    check: Callable[[When], When] = lambda when: when
    version: int | None = None


@dataclass(frozen=True)
class Command:
    """A statement that creates, drops, maintains or describes one table.

    Attributes:
        words: its words before the table's name, such as `CREATE OR REPLACE TABLE`.
        name: the table's name.
        start: the offset of the name in the text.
        end: the offset of the end of the name.
        body: the offset of the end of the list of columns, or of the name without such a list.
        clauses: the words from there up to a query, without those in parentheses.
    """

    words: str
    name: TableName
    start: int
    end: int
    body: int
    clauses: tuple[str, ...]

    @property
    def is_elsewhere(self) -> bool:
        """True if a CREATE TABLE names another format than Delta, or a location."""
        has_format = self.clauses[:1] == ("USING",) and self.clauses[1:2] != ("DELTA",)
        return has_format or not {"LOCATION", "STORED", "ROW"}.isdisjoint(self.clauses)

    def place(self, path: str) -> list[Edit]:
        """Return the edits that name the table by its path; a CREATE TABLE gets Delta as format."""
        edits = [(self.start, self.end, delta_name(path))]
        if self.words.startswith("CREATE") and self.clauses[:1] not in _WITH_FORMAT:
            edits.append((self.body, self.body, " USING delta"))
        return edits


@dataclass(frozen=True)
class Statement:
    """A parsed query.

    Attributes:
        text: the query, with shorthands such as `@v2` expanded.
        trees: the syntax trees of sqlglot, one per statement; empty if sqlglot cannot parse the
            query, and for a command without a query.
        error: the error of sqlglot in this case.
        command: the command, if the statement is one.
    """

    text: str
    trees: tuple[exp.Expr, ...] = ()
    error: SqlglotError | None = None
    command: Command | None = None


@dataclass(frozen=True)
class NamedTable:
    """A place where a statement names a table.

    Attributes:
        name: the name of the table.
        node: the node of the syntax tree.
        start: the offset of the name in the text.
        end: the offset of the end of the name.
    """

    name: TableName
    node: exp.Table
    start: int
    end: int

    @property
    def alias(self) -> str:
        """The name that qualifies the table's columns."""
        return self.node.alias or self.node.name


def parse_statement(query: str) -> Statement:
    """Parse a query. A query that sqlglot cannot parse keeps its text, and Spark reports the error.

    Raises:
        QueryError: the timestamp of a shorthand is invalid.
        InvalidNameError: no new table can have the name in a CREATE TABLE.
    """
    text, command = query, None
    try:
        tokens = DIALECT.tokenize(query)
        if edits := _shorthands(tokens):
            text = apply_edits(query, edits)
            tokens = DIALECT.tokenize(text)
        command = _parse_command(tokens, text)
        if command is not None and not command.words.startswith("CREATE"):
            return Statement(text, command=command)
        trees = DIALECT.parser().parse(tokens, text)
    except SqlglotError as error:
        return Statement(text, error=error, command=command)
    return Statement(text, tuple(tree for tree in trees if tree is not None), command=command)


_COMMAND = re.compile(
    r"(CREATE(?: OR REPLACE)? TABLE(?: IF NOT EXISTS)?|DROP TABLE(?: IF EXISTS)?"
    r"|OPTIMIZE|REORG TABLE|VACUUM|DESC(?:RIBE)? DETAIL"
    r"|ALTER TABLE(?= \S+(?: \. \S+)? UNSET TBLPROPERTIES)) "
)
_QUERY = ("SELECT", "WITH", "AS")
_WITH_FORMAT = (("USING",), ("LIKE",), ("SHALLOW",), ("DEEP",), ("CLONE",))
_NAME = re.compile(r"[\w`]")
_DEPTH = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}


def _parse_command(tokens: list[Token], text: str) -> Command | None:
    """Return the command that a statement is; None if it is another one, or names a path.

    Raises:
        InvalidNameError: no new table can have this name.
    """
    written = [text[token.start : token.end + 1] for token in tokens]
    words = [word.upper() for word in written]
    found = _COMMAND.match(" ".join(words[:7]) + " ")
    first = last = 0 if found is None else len(found[1].split())
    while words[last + 1 : last + 2] == ["."]:
        last += 2
    name = "".join(written[first : last + 1])
    is_path = "/" in name or not _NAME.match(name)
    if found is None or last > first + 2 or is_path or ";" in words[:-1]:
        return None
    depths = [*accumulate(_DEPTH.get(token.token_type, 0) for token in tokens)]
    body = last + 1
    has_list = words[body : body + 1] == ["("] and words[body + 1 : body + 2] != ["("]
    if has_list and 0 in depths[body:] and words[body + 1] not in _QUERY:
        body = depths.index(0, body) + 1
    outer = (word for word, depth in zip(words[body:], depths[body:], strict=True) if depth == 0)
    clauses = tuple(takewhile(lambda word: word not in (";", *_QUERY), outer))
    start, end = tokens[first].start, tokens[last].end + 1
    try:
        table = TableName.parse(name)
    except InvalidNameError:
        if words[0] == "CREATE":
            raise
        return None
    return Command(found[1], table, start, end, tokens[body - 1].end + 1, clauses)


_READS = (exp.Query, exp.Values, exp.Table, exp.Describe, exp.Show)
_READING = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN")
_WRITING = re.compile(r"\b(INSERT|MERGE|UPDATE|DELETE|OVERWRITE|CREATE|DROP)\b", re.IGNORECASE)


def check_reads_only(statement: Statement) -> None:
    """Raise an error for a statement that could change data.

    A statement that sqlglot does not know is judged by its keywords, and refused in case of doubt.

    Raises:
        QueryError: the statement is not a query.
    """
    trees = [tree for tree in statement.trees if not isinstance(tree, _READS)]
    if statement.trees and not trees:
        return
    words = statement.text.split(maxsplit=1)
    is_reading = bool(words) and words[0].lstrip("(").upper() in _READING
    is_command = all(isinstance(tree, exp.Command) for tree in trees)
    if not (is_reading and is_command) or _WRITING.search(statement.text):
        raise QueryError(
            "The statement is not a query: it could change a table.",
            hint="begin with SELECT or WITH; use the other commands for changes.",
        )


def _shorthands(tokens: list[Token]) -> list[Edit]:
    """Return edits that replace `@v2`, `@yyyyMMddHHmmssSSS` and `AS OF VERSION` for Spark."""
    edits: list[Edit] = []
    for index, token in enumerate(tokens):
        following = tokens[index + 1 : index + 4]
        if token.token_type == TokenType.PARAMETER and index and following:
            adjacent = tokens[index - 1].end + 1 == token.start == following[0].start - 1
            if adjacent:
                clause = _at_clause(following[0].text)
                edits.append((token.start, following[0].end + 1, f" {clause}"))
        words = [token.text.upper(), *(t.text.upper() for t in following[:2])]
        before = tokens[index - 1].text.upper() if index else ""
        spelled = words[:2] == ["AS", "OF"] and words[2:] in (["VERSION"], ["TIMESTAMP"])
        if spelled and before not in ("VERSION", "TIMESTAMP"):
            edits.append((token.start, following[1].end + 1, f"{words[2]} AS OF"))
    return edits


def _at_clause(text: str) -> str:
    if re.fullmatch(r"[vV]\d+", text):
        return f"VERSION AS OF {text[1:]}"
    if re.fullmatch(r"\d{1,16}", text, re.ASCII):
        raise QueryError(f"@{text} is not a version.", hint=f"write @v{text}.")
    if re.fullmatch(r"\d{17}", text, re.ASCII):
        try:
            moment = parse_utc_timestamp(text)
        except UsageError as error:
            raise QueryError(
                f"@{text} is not a valid timestamp.",
                hint="write @yyyyMMddHHmmssSSS, or @v and a version number.",
            ) from error
        return f"TIMESTAMP AS OF {literal(moment.isoformat(timespec='milliseconds'))}"
    raise QueryError(
        f"@{text} is not a version.", hint="write @v and a version number, or @yyyyMMddHHmmssSSS."
    )


def named_tables(tree: exp.Expr) -> Iterator[NamedTable]:
    """Yield the names in a statement that may refer to tables of the lake, in no fixed order."""
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
    """Check whether a name refers to a common table expression of the query."""
    if node.db:
        return False
    inside: exp.Expr | None = None  # the CTE that contains the name
    scope = node.parent
    while scope is not None:
        if isinstance(scope, exp.CTE):
            inside = scope
        if clause := scope.args.get("with_"):
            for cte in clause.expressions:
                if cte is inside and not clause.args.get("recursive"):
                    break  # a CTE can refer only to those before it
                if cte.alias.lower() == node.name.lower():
                    return True
        scope = scope.parent
    return False


def resolve_tables(
    statement: Statement,
    find: Callable[[TableName], Relation | None],
    evaluate: Callable[[str], datetime | None] = lambda expression: None,
) -> list[Edit]:
    """Return the edits of a statement's text that make it read tables by path.

    Args:
        statement: the query.
        find: returns the table that a name refers to, or None.
        evaluate: evaluates the expression of a timestamp that is not a literal; None leaves the
            evaluation to Spark.
    """
    edits: list[Edit] = []
    created = statement.command and statement.command.start
    for tree in statement.trees:
        for named in named_tables(tree):
            relation = None if named.start == created else find(named.name)
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
    after = end
    version = node.args.get("version")
    when: When | None = None if version else relation.version
    if when is not None:
        path += f" VERSION AS OF {when}"
    edits: list[Edit] = [(start, end, path)]
    if version and "span" in version.meta:
        first, after = version.meta["span"]
        when, clause = _literal_version(version), ""
        if when is None and str(version.this).upper() == "TIMESTAMP":
            # Spark evaluates timestamp expressions only for tables of a catalog, not for paths.
            when = evaluate(statement.text[first:after])
            if when is not None:
                clause = f"TIMESTAMP AS OF {literal(when.isoformat())}"
        if when is not None and (readable := relation.check(when)) != when:
            when, clause = readable, f"VERSION AS OF {readable}"
        if clause:
            edits.append((version.meta["start"], after, clause))
    is_source = isinstance(node.parent, exp.Merge) and node.arg_key == "using"
    if not is_source and not node.find_ancestor(exp.Select):
        return edits
    # Spark accepts a version in the USING clause of a MERGE only within a subquery.
    visible = relation.columns(when)
    if visible is not None or (is_source and (version or when is not None)):
        columns = "*" if visible is None else ", ".join(map(quote, visible))
        edits[0] = (start, end, f"(SELECT {columns} FROM {path}")
        edits.append((after, after, ")"))
    if not node.alias:  # columns may be qualified with the table's name
        edits.append((after, after, f" AS {quote(node.name)}"))
    return edits


def _literal_version(version: exp.Expr) -> When | None:
    """Return the version or timestamp of a clause if it is a literal, else None."""
    value = version.expression
    if not isinstance(value, exp.Literal):
        return None
    if str(version.this).upper() == "VERSION":
        return int(value.name) if value.name.isdecimal() else None
    try:
        return parse_utc_timestamp(value.name)
    except UsageError:
        return None


def apply_edits(text: str, edits: list[Edit]) -> str:
    """Return the text with edits applied. An edit is a start, an end and the new text."""
    # Of two edits that start at the same offset, the later one is placed after the other.
    ordered = sorted(edits, key=lambda edit: edit[:2])
    for start, end, new in ordered[::-1]:
        text = text[:start] + new + text[end:]
    return text


_POSITION = re.compile(r"\bline (\d+),? pos (\d+)")
_ECHO = re.compile(r" ?== SQL\b.*?==.*?(?= ← |$)")


def locate_in_query(message: str, query: str, statement: Statement, edits: list[Edit]) -> str:
    """Return a message of Spark with the positions of the query, and without the edited text.

    Args:
        message: the message on one line; its positions are those of the edited text.
        query: the query.
        statement: the statement that was parsed from it.
        edits: the edits of the statement's text.
    """
    lines = apply_edits(statement.text, edits).split("\n")
    layers = [edits]
    if statement.text != query:
        layers.append(_shorthands(DIALECT.tokenize(query)))

    def locate(position: re.Match[str]) -> str:
        line, column = int(position[1]), int(position[2])
        offset = sum(len(text) + 1 for text in lines[: line - 1]) + column
        for layer in layers:
            offset = _before_edits(offset, layer)
        *before, last = query[:offset].split("\n")
        return f"line {len(before) + 1}, pos {len(last)}"

    return _POSITION.sub(locate, _ECHO.sub("", message))


def _before_edits(offset: int, edits: list[Edit]) -> int:
    """Return the offset in a text of an offset in its edited form; in a new text, its start."""
    shift = 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        if offset < start + shift:
            break
        if offset < start + shift + len(new):
            return start
        shift += len(new) - (end - start)
    return offset - shift
