"""A query cut into its clauses, each as its author wrote it.

The tree of sqlglot's parser says what a query is; the pieces are taken out of the text by its
tokens, so that Spark sees the very expressions that were written, put together in another order.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from mirrorlake.errors import QueryError, UsageError
from mirrorlake.history.sql import apply_edits, named_tables, parse_statement
from mirrorlake.names import TableName
from mirrorlake.spark.sql import quote

_OPEN, _CLOSE = ("(", "[", "{"), (")", "]", "}")
_CLAUSES = ("SELECT", "FROM", "WHERE", "GROUP BY", "HAVING")
_END = ("ORDER BY", "SORT BY", "CLUSTER BY", "DISTRIBUTE BY", "LIMIT", "OFFSET", "WINDOW", ";")
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)


@dataclass(frozen=True)
class Piece:
    """A stretch of a query.

    Attributes:
        text: as written.
        tokens: the same, token by token.
    """

    text: str
    tokens: tuple[Token, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """What makes two pieces the same, however they are spaced and spelled."""
        return tuple(_word(token) for token in self.tokens)

    def part(self, first: int, last: int) -> Piece:
        """A stretch of it, from one token to another, both included."""
        start, end = self.tokens[first].start, self.tokens[last].end + 1
        offset = self.tokens[0].start
        return Piece(self.text[start - offset : end - offset], self.tokens[first : last + 1])

    def commas(self) -> list[Piece]:
        """The parts between its outermost commas."""
        cuts = [-1, *(i for i, depth in _depths(self.tokens) if not depth and self._is(i, ","))]
        ends = [*cuts[1:], len(self.tokens)]
        return [self.part(a + 1, b - 1) for a, b in zip(cuts, ends, strict=True) if b - 1 >= a + 1]

    def _is(self, index: int, text: str) -> bool:
        token = self.tokens[index]
        return token.text == text and token.token_type != TokenType.STRING


@dataclass(frozen=True)
class Reference:
    """A table where a query names it.

    Attributes:
        name: which table.
        alias: what its columns are qualified by.
        start: where its name begins in the query.
        end: where it ends.
        aliased: whether the query gives the alias.
        pinned: whether the query names a version.
        node: the name in the tree.
    """

    name: TableName
    alias: str
    start: int
    end: int
    aliased: bool
    pinned: bool
    node: exp.Table


@dataclass(frozen=True)
class Select:
    """One SELECT's clauses.

    Attributes:
        items: what it selects, without names.
        source: what stands after FROM.
        where: the condition, or None.
        group: what it groups by, as written.
        having: the groups' condition, or None.
    """

    items: tuple[Piece, ...]
    source: Piece
    where: Piece | None
    group: tuple[Piece, ...]
    having: Piece | None


@dataclass(frozen=True)
class Query:
    """A parsed query.

    Attributes:
        text: as written, shorthands written out.
        tree: sqlglot's.
        references: the tables that it names, in the text's order.
        select: its clauses if it is one plain SELECT, else None.
    """

    text: str
    tree: exp.Query
    references: tuple[Reference, ...]
    select: Select | None

    def replaced(self, piece: Piece | None, relations: dict[int, str]) -> str:
        """The query, or a piece of it, with tables replaced.

        Args:
            piece: which stretch; None for all.
            relations: what stands for the table that begins at a place of the text.
        """
        start = 0 if piece is None else piece.tokens[0].start
        end = len(self.text) if piece is None else piece.tokens[-1].end + 1
        edits = []
        for found in self.references:
            if found.start in relations and start <= found.start < end:
                alias = "" if found.aliased else f" AS {quote(found.alias)}"
                text = relations[found.start] + alias
                edits.append((found.start - start, found.end - start, text))
        return apply_edits(self.text[start:end], edits)


def parse_query(sql: str) -> Query:
    """Cuts a query up.

    Raises:
        QueryError: it is no query that sqlglot's parser knows.
        UsageError: it is no query at all, or several statements.
    """
    statement = parse_statement(sql.strip().rstrip(";").strip())
    if error := statement.error:
        raise QueryError(
            f"The view's query can't be understood: {str(error).splitlines()[0]}"
        ) from error
    text, tokens, trees = statement.text, statement.tokens, statement.trees
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Query):
        raise UsageError("A view is made of one query.", hint="write one SELECT.")
    return Query(text, tree, _references(tree), _cut(text, tree, tokens))


def _references(tree: exp.Query) -> tuple[Reference, ...]:
    found = [
        Reference(
            one.name,
            one.alias,
            one.start,
            one.end,
            bool(one.node.alias),
            one.node.args.get("version") is not None,
            one.node,
        )
        for one in named_tables(tree)
    ]
    return tuple(sorted(found, key=lambda one: one.start))


def _cut(text: str, tree: exp.Query, tokens: tuple[Token, ...]) -> Select | None:
    """The clauses, or None for what is more than one plain SELECT with a FROM."""
    if not isinstance(tree, exp.Select) or tree.args.get("with_") or not tokens:
        return None
    marks: dict[str, int] = {}
    last = len(tokens)
    for index, depth in _depths(tokens):
        word = tokens[index].text.upper()
        if depth or tokens[index].token_type in (*_NAMES, TokenType.STRING):
            continue
        if word in _CLAUSES and word not in marks:
            marks[word] = index
        elif word in _END:
            last = index
            break
    if "FROM" not in marks or marks.get("SELECT") != 0:
        return None
    ends = sorted([*marks.values(), last])
    whole = Piece(text[tokens[0].start :], tokens)

    def piece(word: str) -> Piece | None:
        if word not in marks:
            return None
        first = marks[word] + 1
        end = next(e for e in ends if e > marks[word]) - 1
        while word == "SELECT" and _is_modifier(tokens[first]):
            first += 1
        return whole.part(first, end) if end >= first else None

    selected, source, group = piece("SELECT"), piece("FROM"), piece("GROUP BY")
    if selected is None or source is None:
        return None
    parts = selected.commas()
    if len(parts) != len(tree.expressions):
        return None
    items = tuple(_bare(part, node) for part, node in zip(parts, tree.expressions, strict=True))
    grouped = () if group is None else tuple(group.commas())
    return Select(items, source, piece("WHERE"), grouped, piece("HAVING"))


def _is_modifier(token: Token) -> bool:
    return token.token_type in (TokenType.DISTINCT, TokenType.ALL, TokenType.HINT)


def _bare(piece: Piece, node: exp.Expression) -> Piece:
    """A selected expression without the name that it is given."""
    if not isinstance(node, exp.Alias) or len(piece.tokens) < 2:
        return piece
    last = len(piece.tokens) - 2
    if piece.tokens[last].text.upper() == "AS":
        last -= 1
    return piece.part(0, last)


def _depths(tokens: tuple[Token, ...]) -> list[tuple[int, int]]:
    """Each token's place and how many parentheses are open around it."""
    depth, found = 0, []
    for index, token in enumerate(tokens):
        is_text = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        if not is_text and token.text in _CLOSE:
            depth -= 1
        found.append((index, depth))
        if not is_text and token.text in _OPEN:
            depth += 1
    return found


def closing(tokens: tuple[Token, ...], opening: int) -> int:
    """Where the parenthesis closes that opens at a place."""
    level = dict(_depths(tokens))[opening]
    return next(i for i, depth in _depths(tokens) if i > opening and depth == level)


def _word(token: Token) -> str:
    if token.token_type == TokenType.STRING:
        return f"'{token.text}"
    return token.text.lower()
