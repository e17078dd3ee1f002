"""Which values of the hash key a predicate can be true for; nothing where that is not certain.

Only what is certain counts: comparisons of the plain column with plain text, joined by AND and OR.
A number would make Spark compare numbers, so that '05' equals 5, and no hash can tell that.
"""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

Values = frozenset[str | None]


def key_values(where: str, column: str) -> Values | None:
    """The values of a column that rows of a predicate can have.

    Args:
        where: the predicate as Spark's SQL.
        column: the column's name.

    Returns:
        None if it may be any value; NULL is None among the values.

    Example:
        >>> sorted(key_values("n > 1 AND k IN ('a', 'b')", "k"))
        ['a', 'b']
        >>> key_values("k = 'a' OR n = 1", "k") is None
        True
    """
    if "\\" in where or '"' in where:  # escapes and quotes that settings give another meaning
        return None
    try:
        tree = sqlglot.parse_one(where, read="spark")
    except SqlglotError:
        return None
    return _values(tree, column.lower())


def _values(node: exp.Expr, column: str) -> Values | None:
    if isinstance(node, exp.Paren):
        return _values(node.this, column)
    if isinstance(node, (exp.And, exp.Or)):
        left, right = _values(node.left, column), _values(node.right, column)
        if isinstance(node, exp.Or):
            return None if left is None or right is None else left | right
        return right if left is None else left if right is None else left & right
    if isinstance(node, (exp.EQ, exp.NullSafeEQ)):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if _is_column(one, column):
                return _literals([other])
    if isinstance(node, exp.In) and _is_column(node.this, column) and not node.args.get("query"):
        return _literals(node.expressions)
    if isinstance(node, exp.Is) and _is_column(node.this, column):
        return frozenset([None]) if isinstance(node.expression, exp.Null) else None
    return None


def _is_column(node: exp.Expr, column: str) -> bool:
    return isinstance(node, exp.Column) and not node.table and node.name.lower() == column


def _literals(nodes: list[exp.Expr]) -> Values | None:
    if nodes and all(isinstance(node, exp.Literal) and node.is_string for node in nodes):
        values = frozenset(node.this for node in nodes)
        # Half of a surrogate pair has no bytes, and so no hash.
        return None if any("\ud800" <= char <= "\udfff" for v in values for char in v) else values
    return None
