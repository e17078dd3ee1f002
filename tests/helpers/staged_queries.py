"""Random queries with subqueries, WITH, set operations and LIMIT, over tables of two columns.

Each query returns the columns g, a text, and n, a number, so that it can be a part of another one.
"""

from __future__ import annotations

from hypothesis import strategies as st

TABLES = {"t": ("g", "n"), "s": ("g", "n")}
T_ROWS = [("a", 1), ("a", 1), ("a", 3), ("b", 2), ("b", None), (None, 2), (None, None), ("c", 0)]
S_ROWS = [("a", 1), ("b", 2), ("b", 3), (None, 1), ("z", None), ("c", 3)]
_PLAIN = ["a.g, a.n", "DISTINCT a.g AS g, a.n AS n", "upper(a.g) AS g, a.n + 1 AS n", "a.g, 5 AS n"]
_ITEMS = ["count(*)", "sum(a.n)", "min(a.n)", "max(a.n) - min(a.n)", "count(DISTINCT a.n)"]
_VALUES = ["max({b})", "0.5 * sum({b})", "count({b})", "min({b}) + 1"]
_FILTERS = ["a.n > 0", "a.g IS NOT NULL", "(a.n = 1 OR a.g = 'a')", "NOT a.n = 2"]
_JOINS = [
    "{a}, {b} WHERE a.g = b.g",
    "{a} JOIN {b} ON a.g = b.g AND a.n <> b.n",
    "{a} LEFT JOIN {b} ON a.g = b.g AND b.n > 0",
    "{a} LEFT SEMI JOIN {b} ON a.g = b.g",
]


@st.composite
def queries(draw: st.DrawFn, depth: int = 2, names: tuple[str, ...] = tuple(TABLES)) -> str:
    """Generate a query.

    Args:
        draw: the function that draws from a strategy.
        depth: the greatest number of nested subqueries.
        names: the tables, and the queries in WITH.
    """
    kind = draw(st.sampled_from(["plain", "groups", "groups", "union", "window", "scalar"]))
    below = queries(depth - 1, names) if depth else st.sampled_from([_table(n) for n in names])
    if kind == "union":
        operator = draw(st.sampled_from(["UNION ALL", "UNION", "EXCEPT", "INTERSECT"]))
        return f"{draw(below)} {operator} {draw(below)}" if depth else draw(below)
    return draw(_selects(depth, names, kind))


def _table(name: str) -> str:
    return f"SELECT g, n FROM {name}"


@st.composite
def _selects(draw: st.DrawFn, depth: int, names: tuple[str, ...], kind: str) -> str:
    def relation(alias: str) -> str:
        if depth and draw(st.booleans()):
            return f"({draw(queries(depth - 1, names))}) AS {alias}"
        return f"{draw(st.sampled_from(names))} AS {alias}"

    a, b = relation("a"), relation("b")
    text = draw(st.sampled_from([a, a, *(join.format(a=a, b=b) for join in _JOINS)]))
    conditions = draw(st.lists(_conditions(depth, names), max_size=2))
    if conditions:
        text += f"{' AND' if ' WHERE a.g = b.g' in text[-20:] else ' WHERE'} "
        text += " AND ".join(conditions)
    if kind == "groups":
        item = draw(st.sampled_from(_ITEMS))
        value = draw(_scalars(depth, names, outer=False))
        having = ["", " HAVING count(*) > 1", f" HAVING sum(a.n) > {value}"]
        return f"SELECT a.g, {item} AS n FROM {text} GROUP BY a.g{draw(st.sampled_from(having))}"
    if kind == "window":
        over = "rank() OVER (PARTITION BY a.g ORDER BY a.n)"
        return f"SELECT a.g, {over} AS n FROM {text}"
    if kind == "scalar":
        return f"SELECT a.g, {draw(_scalars(depth, names))} AS n FROM {text}"
    return f"SELECT {draw(st.sampled_from(_PLAIN))} FROM {text}"


@st.composite
def _scalars(draw: st.DrawFn, depth: int, names: tuple[str, ...], outer: bool = True) -> str:
    value = draw(st.sampled_from(_VALUES)).format(b="b.n")
    source = f"{draw(st.sampled_from(names))} AS b"
    if depth and draw(st.booleans()):
        source = f"({draw(queries(depth - 1, names))}) AS b"
    links = ["", " WHERE b.n > 0", *([" WHERE b.g = a.g", " WHERE a.g = b.g AND b.n < 3"] * outer)]
    return f"(SELECT {value} FROM {source}{draw(st.sampled_from(links))})"


@st.composite
def _conditions(draw: st.DrawFn, depth: int, names: tuple[str, ...]) -> str:
    inner = draw(queries(depth - 1, names)) if depth else _table(draw(st.sampled_from(names)))
    scalar = draw(_scalars(depth, names))
    return draw(
        st.sampled_from(
            [
                *_FILTERS,
                f"a.g IN (SELECT b.g FROM ({inner}) b)",
                f"a.n NOT IN (SELECT b.n FROM ({inner}) b)",
                f"a.n IN (SELECT b.n FROM ({inner}) b WHERE b.g = a.g)",
                f"EXISTS (SELECT * FROM ({inner}) b WHERE b.g = a.g AND b.n <> a.n)",
                f"NOT EXISTS (SELECT 1 FROM ({inner}) b WHERE b.g = a.g)",
                f"a.n < {scalar}",
                f"coalesce(a.n >= {scalar}, true)",
            ]
        )
    )


@st.composite
def limited(draw: st.DrawFn) -> str:
    """Generate a query that may have WITH, and ORDER BY with LIMIT."""
    clause, names = "", tuple(TABLES)
    if draw(st.booleans()):
        columns = draw(st.sampled_from(["", " (g, n)"]))
        clause = f"WITH c{columns} AS ({draw(queries(1))}) "
        names = (*names, "c", "c")
    query = draw(queries(2, names))
    limit = draw(st.sampled_from(["", "", " ORDER BY n DESC, g LIMIT 3"]))
    return f"{clause}SELECT q.g, q.n FROM ({query}) q{limit}" if limit else f"{clause}{query}"


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
    "except": (
        "SELECT g, max(n) AS n FROM t GROUP BY g EXCEPT"
        " (SELECT g, n FROM s INTERSECT SELECT g, min(n) FROM s GROUP BY g)",
        4,
    ),
}
