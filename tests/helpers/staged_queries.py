"""Random queries with subqueries, WITH, set operations and LIMIT, over tables of two columns.

Each query returns the columns g, a text, and n, a number, so that it can be a part of another one.
"""

from __future__ import annotations

from random import Random
from typing import Any

TABLES = {"t": ("g", "n"), "s": ("g", "n")}
T_ROWS = [("a", 1), ("a", 1), ("a", 3), ("b", 2), ("b", None), (None, 2), (None, None), ("c", 0)]
S_ROWS = [("a", 1), ("b", 2), ("b", 3), (None, 1), ("z", None), ("c", 3)]
_KINDS = ["plain", "groups", "sets", "total", "union", "window", "scalar"]
_PLAIN = ["a.g, a.n", "DISTINCT a.g AS g, a.n AS n", "upper(a.g) AS g, a.n + 1 AS n", "a.g, 5 AS n"]
_ITEMS = ["count(*)", "sum(a.n)", "min(a.n)", "max(a.n) - min(a.n)", "count(DISTINCT a.n)"]
_ITEMS += ["count(DISTINCT a.n) + count(*)", "count(DISTINCT a.n) - sum(a.n)"]
_SETS = ["ROLLUP (a.g)", "CUBE (a.g, a.n)", "GROUPING SETS ((a.n, a.g), a.g, ())"]
_OPERATORS = ["UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL"]
_LIMITS = ["", "", "", " ORDER BY n DESC, g LIMIT 3", " ORDER BY g LIMIT 2 OFFSET 1"]
_VALUES = ["max(b.n)", "0.5 * sum(b.n)", "count(b.n)", "min(b.n) + 1"]
_FILTERS = ["a.n > 0", "a.g IS NOT NULL", "(a.n = 1 OR a.g = 'a')", "NOT a.n = 2"]
_SUBQUERIES = [
    "a.g IN (SELECT b.g FROM {b})",
    "a.n NOT IN (SELECT b.n FROM {b})",
    "a.n IN (SELECT b.n FROM {b} WHERE b.g = a.g)",
    "EXISTS (SELECT * FROM {b} WHERE b.g = a.g AND b.n <> a.n)",
    "NOT EXISTS (SELECT 1 FROM {b} WHERE b.g = a.g)",
]
_SCALARS = ["a.n < {0}", "coalesce(a.n >= {0}, true)"]
_JOINS = [
    "{0}, {1} WHERE a.g = b.g",
    "{0} JOIN {1} ON a.g = b.g AND a.n <> b.n",
    "{0} LEFT JOIN {1} ON a.g = b.g AND b.n > 0",
    "{0} LEFT SEMI JOIN {1} ON a.g = b.g",
    "{0} RIGHT JOIN {1} ON a.g = b.g AND a.n < b.n",
    "{0} FULL JOIN {1} ON a.g = b.g",
]


def random_rows(random: Random) -> list[tuple[Any, ...]]:
    """Return at most six rows of a table, with NULLs and duplicates."""
    texts, numbers = (None, "a", "b", "A"), (None, 0, 1, 2, 3)
    return [(random.choice(texts), random.choice(numbers)) for _ in range(random.randrange(7))]


def random_query(random: Random) -> str:
    """Return a query that may have WITH, and ORDER BY with LIMIT."""
    clause, names = "", tuple(TABLES)
    if random.random() < 0.3:
        columns = random.choice(["", " (g, n)"])
        clause = f"WITH c{columns} AS ({_query(random, 1, names)}) "
        names = (*names, "c", "c")
    query, limit = _query(random, 2, names), random.choice(_LIMITS)
    if limit and random.random() < 0.5:
        query = f"SELECT q.g, q.n FROM ({query}) q"
    return f"{clause}{query}{limit}"


def _query(random: Random, depth: int, names: tuple[str, ...]) -> str:
    """Return a query with at most `depth` nested subqueries over these tables."""
    if depth < 0:
        return f"SELECT g, n FROM {random.choice(names)}"
    kind = random.choice(_KINDS)
    if kind == "union":
        pattern = random.choice(["{0} {2} {1}", "{0} {2} ({1})", "({0}) {2} {1}"])
        sides = (_query(random, depth - 1, names) for _ in range(2))
        return pattern.format(*sides, random.choice(_OPERATORS))
    text = _relation(random, depth, names, "a")
    if random.random() < 0.5:
        text = random.choice(_JOINS).format(text, _relation(random, depth, names, "b"))
    conditions = [_condition(random, depth, names) for _ in range(random.randrange(3))]
    if conditions:
        word = "AND" if text.endswith(" WHERE a.g = b.g") else "WHERE"
        text += f" {word} {' AND '.join(conditions)}"
    item = random.choice(_ITEMS)
    if kind == "total":
        return f"SELECT max(a.g) AS g, {item} AS n FROM {text}"
    if kind in ("groups", "sets"):
        keys = random.choice(_SETS) if kind == "sets" else "a.g"
        value = _scalar(random, depth, names, outer=False)
        having = ["", "", " HAVING count(*) > 1", f" HAVING sum(a.n) > {value}"]
        having += [f" HAVING max(a.n) IN (SELECT b.n FROM {random.choice(names)} b)"]
        return f"SELECT a.g, {item} AS n FROM {text} GROUP BY {keys}{random.choice(having)}"
    if kind == "window":
        return f"SELECT a.g, rank() OVER (PARTITION BY a.g ORDER BY a.n) AS n FROM {text}"
    if kind == "scalar":
        return f"SELECT a.g, {_scalar(random, depth, names)} AS n FROM {text}"
    return f"SELECT {random.choice(_PLAIN)} FROM {text}"


def _relation(random: Random, depth: int, names: tuple[str, ...], alias: str) -> str:
    if random.random() < 0.3:
        return f"({_query(random, depth - 1, names)}) AS {alias}"
    return f"{random.choice(names)} AS {alias}"


def _scalar(random: Random, depth: int, names: tuple[str, ...], *, outer: bool = True) -> str:
    links = ["", " WHERE b.n > 0", *([" WHERE b.g = a.g", " WHERE a.g = b.g AND b.n < 3"] * outer)]
    source = _relation(random, depth, names, "b")
    return f"(SELECT {random.choice(_VALUES)} FROM {source}{random.choice(links)})"


def _condition(random: Random, depth: int, names: tuple[str, ...]) -> str:
    kind = random.choice([_FILTERS, _SUBQUERIES, _SCALARS])
    value = _scalar(random, depth, names) if kind is _SCALARS else ""
    return random.choice(kind).format(value, b=_relation(random, depth, names, "b"))


# One query of each shape, with the number of its stages.
SHAPES = {
    "merged": ("SELECT q.g, q.m + 1 AS n FROM (SELECT g, n * 2 AS m FROM t WHERE n > 0) q", 1),
    "groups_of_groups": (
        "SELECT q.k AS g, count(*) AS n FROM (SELECT upper(g) AS k, sum(n) AS n FROM t GROUP BY g)"
        " q WHERE q.n > 1 GROUP BY q.k",
        2,
    ),
    "with_twice": (
        "WITH c (g, n) AS (SELECT g, sum(n) FROM t GROUP BY g)"
        " SELECT c.g, c.n FROM c WHERE c.n = (SELECT max(n) FROM c)",
        3,
    ),
    "nested_with": (
        "WITH a AS (WITH b AS (SELECT g, max(n) AS n FROM s GROUP BY g) SELECT g, n FROM b),"
        " c AS (SELECT a.g, t.n FROM a JOIN t ON a.g = t.g) SELECT x.g, y.n FROM c x, c y"
        " WHERE x.g = y.g AND x.n <> y.n",
        2,
    ),
    "outer_joined": (
        "SELECT t.g, q.n FROM t LEFT JOIN (SELECT g, n + 1 AS n FROM s WHERE n > 1) q ON t.g = q.g",
        2,
    ),
    "in": ("SELECT g, n FROM t WHERE g IN (SELECT g FROM s WHERE n > 1)", 1),
    "in_groups": (
        "SELECT g, n FROM t WHERE n IN (SELECT max(n) FROM s GROUP BY g HAVING count(*) > 1)",
        2,
    ),
    "not_in": ("SELECT g, n FROM t WHERE n NOT IN (SELECT n FROM s WHERE g <> 'z')", 2),
    "not_in_with_null": ("SELECT g, n FROM t WHERE n NOT IN (SELECT n FROM s)", 2),
    "exists": (
        "SELECT g, n FROM t WHERE EXISTS (SELECT * FROM t b WHERE b.g = t.g AND b.n <> t.n)"
        " AND NOT EXISTS (SELECT 1 FROM s WHERE s.g = t.g AND s.n > t.n)",
        1,
    ),
    "exists_join": (
        "SELECT g, n FROM t a WHERE EXISTS"
        " (SELECT 1 FROM s JOIN t ON s.n = t.n WHERE s.g = a.g AND t.g <> a.g)",
        2,
    ),
    "scalar": ("SELECT g, n FROM t WHERE n > (SELECT 0.5 * avg(n) FROM s)", 2),
    "scalar_by_key": ("SELECT g, n FROM t WHERE 2 * n > (SELECT sum(n) FROM s WHERE s.g = t.g)", 2),
    "scalar_or_null": (
        "SELECT g, n FROM t WHERE coalesce(n < (SELECT sum(n) FROM s WHERE s.g = t.g), true)",
        2,
    ),
    "scalar_count": ("SELECT g, (SELECT count(*) FROM s WHERE s.g = t.g) AS n FROM t", 2),
    "having": (
        "SELECT g, count(*) AS n FROM t GROUP BY g HAVING count(*) > (SELECT count(*) / 4 FROM s)",
        3,
    ),
    "having_by_key": (
        "SELECT g, count(*) AS n FROM t GROUP BY g HAVING count(*) > (SELECT count(*) FROM s"
        " WHERE s.g = t.g) OR sum(t.n) IS NULL",
        3,
    ),
    "distinct_of_groups": ("SELECT DISTINCT upper(t.g) AS g, count(*) AS n FROM t GROUP BY t.g", 2),
    "window_of_groups": (
        "SELECT max(g) AS g, rank() OVER (PARTITION BY t.n ORDER BY count(*)) AS n FROM t"
        " GROUP BY t.n",
        2,
    ),
    "limit": ("SELECT g, sum(n) AS n FROM t GROUP BY g ORDER BY n DESC, count(*) LIMIT 2", 2),
    "union_all": ("SELECT g, n FROM t UNION ALL SELECT g, count(*) FROM s GROUP BY g", 2),
    "groups_of_union": (
        "SELECT g, count(*) AS n FROM (SELECT g FROM t WHERE n > 0 UNION ALL SELECT g FROM s"
        " UNION ALL SELECT upper(g) FROM t) q GROUP BY g",
        2,
    ),
    "union": (
        "SELECT g, n FROM t UNION SELECT g, n FROM s UNION SELECT g, count(*) FROM s GROUP BY g",
        3,
    ),
    "except": (
        "SELECT g, max(n) AS n FROM t GROUP BY g EXCEPT"
        " (SELECT g, n FROM s INTERSECT SELECT g, min(n) FROM s GROUP BY g)",
        6,
    ),
    "except_all": ("SELECT g, n FROM t EXCEPT ALL SELECT g, count(*) FROM s GROUP BY g", 2),
    "limit_of_union": (
        "SELECT g, n FROM t UNION ALL SELECT g, n FROM s ORDER BY n DESC, g LIMIT 3 OFFSET 1",
        2,
    ),
    "rollup": ("SELECT g, sum(n) AS n FROM t GROUP BY ROLLUP (g)", 3),
    "grouping_sets": (
        "SELECT upper(q.g) AS g, q.m + count(*) AS n FROM (SELECT g, n + 1 AS m FROM t) q"
        " GROUP BY GROUPING SETS ((upper(q.g), q.m), q.m, ()) HAVING count(*) > 1",
        4,
    ),
    "cube": (
        "SELECT t.g, max(t.n) + coalesce(s.n, 0) AS n FROM t JOIN s ON t.g = s.g"
        " GROUP BY CUBE (t.g, s.n)",
        5,
    ),
    "limit_of_rollup": (
        "SELECT g, count(DISTINCT n) AS n FROM t GROUP BY g, ROLLUP (t.n + 1)"
        " ORDER BY n, g LIMIT 4",
        4,
    ),
    "count_distinct": ("SELECT 'all' AS g, count(DISTINCT n) + count(n + 1) AS n FROM t", 2),
    "count_distinct_beside": (
        "SELECT max(g) AS g, count(DISTINCT n) - sum(n) + count(*) AS n FROM t WHERE n < 3",
        2,
    ),
}
