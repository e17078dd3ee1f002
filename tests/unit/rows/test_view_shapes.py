"""The rule of a view's query, or the reason why no rule covers it."""

from __future__ import annotations

import pytest

from helpers.project import PROJECT
from mirrorlake.errors import QueryError, UsageError
from mirrorlake.views import definition
from mirrorlake.views import shape as shapes

COLUMNS = {
    "t": ["id", "g", "x", "d", "odd `name`"],
    "s": ["g", "name", "w"],
    "a": ["id", "g", "x"],
    "b": ["id", "g", "x"],
    "flights": ["id", "g", "x"],
}
KNOWN = {"abs", "count", "date_trunc", "explode", "rank", "row_number", "round", "sum", "upper"}
KNOWN |= {"min", "max", "avg", "count_if", "median", "collect_list", "first_value", "now", "rand"}
KNOWN |= {"any", "approx_top_k", "array", "coalesce", "unix_timestamp"}


def shape_of(sql: str, kinds: str = "") -> shapes.Shape:
    shape = shapes.read_shape(definition.parse_query(sql), COLUMNS, KNOWN)
    return shapes.settle_types(shape, kinds.split() or ["int"] * len(shape.aggregates), ["int"])


@pytest.mark.parametrize(
    ("sql", "replaced"),
    [
        ("SELECT t.g FROM t WHERE x > 0", "SELECT t.g FROM R AS `t` WHERE x > 0"),
        (
            "SELECT t.g FROM t@v1 WHERE x > 0",
            "SELECT t.g FROM R VERSION AS OF 1 AS `t` WHERE x > 0",
        ),
        ("SELECT g FROM t@v1 o", "SELECT g FROM R VERSION AS OF 1 o"),
        (
            "SELECT g FROM t TIMESTAMP AS OF '2024-01-01', s@v2",
            "SELECT g FROM R TIMESTAMP AS OF '2024-01-01' AS `t`, R VERSION AS OF 2 AS `s`",
        ),
    ],
)
def test_a_table_without_alias_keeps_its_name(sql: str, replaced: str) -> None:
    query = definition.parse_query(sql)
    assert query.replaced({one.start: "R" for one in query.tables}) == replaced


@pytest.mark.parametrize(
    ("sql", "method", "keys"),
    [
        ("SELECT id, x * 2 AS y FROM t WHERE x > 0 -- why", "rows", ()),
        ("SELECT * FROM t ORDER BY id;", "rows", ()),
        ("SELECT t.*, name FROM t JOIN s ON t.g = s.g", "rows", ()),
        ("SELECT a.id AS i, b.id AS j FROM a, b WHERE a.g = b.g", "rows", ()),
        ("SELECT g, count(*) FROM t GROUP BY g", "sums", ("g",)),
        ("SELECT upper(g) AS u, sum(x) / count(x) FROM t GROUP BY u", "sums", ("upper(g)",)),
        ("SELECT upper(g) u, round(avg(x), 1) FROM t GROUP BY 1", "sums", ("upper(g)",)),
        ("SELECT t.g, sum(x) FROM t GROUP BY g", "sums", ("g",)),
        ("SELECT g, x, sum(id) FROM t GROUP BY ALL", "sums", ("g", "x")),
        ("SELECT count(*) FILTER (WHERE x > 1) FROM t", "sums", ()),
        ("SELECT DISTINCT g, x FROM t", "sums", ("g", "x")),
        ("SELECT g, max(x) FROM t GROUP BY g", "extremes", ("g",)),
        ("SELECT g, min(x) - sum(x) FROM t GROUP BY g", "extremes", ("g",)),
        ("SELECT g, max(DISTINCT x) FROM t GROUP BY g", "groups", ("g",)),
        ("SELECT g, max(x), count(DISTINCT x) FROM t GROUP BY g", "groups", ("g",)),
        ("SELECT g, count(DISTINCT x) FROM t GROUP BY g", "groups", ("g",)),
        ("SELECT g, count(x, d) FROM t GROUP BY g", "groups", ("g",)),
        ("SELECT g, any(x > 1) FROM t GROUP BY g", "groups", ("g",)),
        ("SELECT g, sum(x) FROM t GROUP BY g HAVING sum(x) > 1", "groups", ("g",)),
        ("SELECT g, rank() OVER (PARTITION BY g ORDER BY x) r FROM t", "partitions", ("g",)),
        (
            "SELECT sum(x) OVER (PARTITION BY g, id) a, max(x) OVER (PARTITION BY G) b FROM t",
            "partitions",
            ("g",),
        ),
    ],
)
def test_queries_with_a_rule(sql: str, method: str, keys: tuple[str, ...]) -> None:
    shape = shape_of(sql)
    assert (shape.method.value, shape.keys, shape.reason) == (method, keys, None)


UNRULED = {
    "AGGREGATE_OF_WINDOW": "SELECT rank() OVER (PARTITION BY g ORDER BY sum(x)) FROM t GROUP BY g",
    "DISTINCT_OF_GROUPS": "SELECT DISTINCT count(*) FROM t GROUP BY g",
    "GLOBAL_AGGREGATE": "SELECT max(x) FROM t",
    "GROUPING_SETS": "SELECT g, count(*) FROM t GROUP BY ROLLUP (g)",
    "JOIN_KIND": "SELECT id FROM t NATURAL JOIN s",
    "LATERAL_VIEW": "SELECT e FROM t LATERAL VIEW explode(x) v AS e",
    "LIMIT": "SELECT id FROM t ORDER BY x LIMIT 3",
    "NONDETERMINISTIC": "SELECT id, current_date AS today FROM t",
    "ORDER_DEPENDENT": "SELECT g, collect_list(x) FROM t GROUP BY g",
    "OUTER_JOIN": "SELECT id FROM t LEFT JOIN s ON t.x > s.w",
    "SET_OPERATION": "SELECT g FROM t UNION ALL SELECT g FROM s",
    "STAR": "SELECT * FROM t JOIN s USING (g)",
    "SUBQUERY": "SELECT id FROM t WHERE g IN (SELECT g FROM s)",
    "SYNTAX": "SELECT 5, count(*) FROM t GROUP BY 1",
    "TIME_TRAVEL": "SELECT id FROM t@v3",
    "UNKNOWN_FUNCTION": "SELECT my_own(x) FROM t",
    "WINDOW_WITHOUT_PARTITION": "SELECT rank() OVER (ORDER BY x) FROM t",
}


@pytest.mark.parametrize(("code", "sql"), UNRULED.items(), ids=UNRULED)
def test_queries_without_a_rule(code: str, sql: str) -> None:
    shape = shape_of(sql)
    assert shape.method is shapes.Method.FULL
    assert shape.reason is not None
    assert (shape.reason.code, bool(shape.reason.why)) == (code, True)


def test_an_aggregate_that_no_list_has_makes_no_view_of_rows() -> None:
    assert shape_of("SELECT approx_top_k(x) FROM t").method is shapes.Method.FULL
    assert shape_of("SELECT g, approx_top_k(x) FROM t GROUP BY g").method is shapes.Method.GROUPS


def test_whether_any_row_fulfils_a_condition_makes_no_view_of_rows() -> None:
    assert shape_of("SELECT any(x > 1) FROM t").method is shapes.Method.FULL


def test_every_reason_of_a_query_has_a_case() -> None:
    assert {*UNRULED, "NESTED_COLUMN"} == set(definition.QUERY_REASONS)
    rows = shapes.read_shape(definition.parse_query("SELECT id FROM t"), COLUMNS, KNOWN)
    nested = shapes.settle_types(rows, [], ["array<int>"])
    assert nested.reason is not None
    assert nested.reason.code == "NESTED_COLUMN"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM t WHERE x > rand()",
        "SELECT now() FROM t",
        "SELECT unix_timestamp() FROM t",
        "SELECT id FROM t WHERE d > TIMESTAMP 'today'",
        "SELECT id FROM t JOIN s ON t.g = s.g AND rand() > 0.5",
    ],
)
def test_clocks_and_dice_are_found_anywhere(sql: str) -> None:
    shape = shape_of(sql)
    assert shape.reason is not None
    assert shape.reason.code == "NONDETERMINISTIC"


@pytest.mark.parametrize(
    ("sql", "kinds", "method"),
    [
        ("SELECT g, sum(x) FROM t GROUP BY g", "bigint", shapes.Method.SUMS),
        ("SELECT g, sum(x) FROM t GROUP BY g", "decimal(38,10)", shapes.Method.SUMS),
        ("SELECT g, sum(x) FROM t GROUP BY g", "double", shapes.Method.GROUPS),
        ("SELECT g, count(x) FROM t GROUP BY g", "double", shapes.Method.SUMS),
        ("SELECT g, avg(x) FROM t GROUP BY g", "decimal(22,14)", shapes.Method.SUMS),
        ("SELECT g, avg(x) FROM t GROUP BY g", "decimal(23,2)", shapes.Method.GROUPS),
        ("SELECT g, avg(x) FROM t GROUP BY g", "decimal(22,15)", shapes.Method.GROUPS),
        ("SELECT sum(x) FROM t", "float", shapes.Method.FULL),
        ("SELECT g, max(x) FROM t GROUP BY g", "decimal(38,10)", shapes.Method.EXTREMES),
        ("SELECT g, min(x) FROM t GROUP BY g", "string", shapes.Method.EXTREMES),
        ("SELECT g, min(x) FROM t GROUP BY g", "timestamp", shapes.Method.EXTREMES),
        ("SELECT g, min(x) FROM t GROUP BY g", "double", shapes.Method.GROUPS),
        ("SELECT g, min(x) FROM t GROUP BY g", "struct<a:int>", shapes.Method.GROUPS),
        ("SELECT g, max(x), count(d) FROM t GROUP BY g", "int map<int,int>", shapes.Method.GROUPS),
        ("SELECT g, max(x), avg(x) FROM t GROUP BY g", "int double", shapes.Method.GROUPS),
        ("SELECT max(x) FROM t", "int", shapes.Method.FULL),
    ],
)
def test_types_decide_what_can_be_summed_up(sql: str, kinds: str, method: shapes.Method) -> None:
    assert shape_of(sql, kinds).method is method


def test_a_key_is_a_part_of_an_expression_only_where_the_parser_sees_one() -> None:
    assert (
        shape_of("SELECT id + x * 2, sum(x) FROM t GROUP BY id + x").method is shapes.Method.GROUPS
    )
    assert (
        shape_of("SELECT (id + x) * 2, sum(x) FROM t GROUP BY id + x").method is shapes.Method.SUMS
    )


def test_a_star_leaves_out_what_is_only_asked_for_a_partner() -> None:
    shape = shape_of("SELECT * FROM s LEFT SEMI JOIN t ON s.g = t.g")
    assert shape.items == ("`s`.`g`", "`s`.`name`", "`s`.`w`")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, struct(*) AS all FROM t",
        "SELECT id FROM t WHERE hash(*) > 0",
        "SELECT g, max(struct(t.*)) FROM t GROUP BY g",
    ],
)
def test_a_star_inside_of_a_function_is_not_written_out(sql: str) -> None:
    shape = shapes.read_shape(definition.parse_query(sql), COLUMNS, KNOWN | {"struct", "hash"})
    assert shape.reason is not None
    assert shape.reason.code == "STAR"


def test_other_relations_stand_for_the_tables_of_a_join() -> None:
    query = definition.parse_query(
        "SELECT a.id FROM t a JOIN `t` ON a.g = t.g LEFT JOIN s AS o USING (g)"
    )
    relations = {one.start: f"r{number}" for number, one in enumerate(query.tables)}
    joins = "JOIN r1 AS `t` ON a.g = t.g LEFT JOIN r2 AS o USING (g)"
    assert query.source(relations) == f"FROM r0 AS a {joins}"


@pytest.mark.parametrize(
    ("written", "again"),
    [
        ("x <=> d = true", "(x IS NOT DISTINCT FROM d) = TRUE"),
        ("d - INTERVAL 1 DAY 2 HOURS", "d - (INTERVAL '1' DAY + INTERVAL '2' HOURS)"),
        ("array(1, 2)[1]", "array(1, 2)[1]"),
        ("Round(x)", "Round(x)"),
    ],
)
def test_what_is_put_together_again_means_what_was_written(written: str, again: str) -> None:
    assert shape_of(f"SELECT {written} AS y FROM t").selected == (again,)


def test_items_are_written_over_what_is_kept() -> None:
    shape = shape_of("SELECT upper(t.g) AS u, 1 + sum(x) / count(x) r FROM t GROUP BY upper(t.g)")
    assert shape.items == (
        "__mirrorlake_key_0",
        "1 + __mirrorlake_aggregate_0 / __mirrorlake_aggregate_1",
    )
    assert [(a.function, a.argument) for a in shape.aggregates] == [("sum", "x"), ("count", "x")]


@pytest.mark.parametrize(
    ("joins", "roles"),
    [
        ("t JOIN s ON t.g = s.g", ["linear", "linear"]),
        ("t LEFT JOIN s ON t.g = s.g AND s.w > 1", ["linear", "nullable"]),
        ("t LEFT JOIN s USING (g)", ["linear", "nullable"]),
        ("t RIGHT JOIN s ON s.g = t.g", ["nullable", "linear"]),
        ("t FULL JOIN s ON t.g <=> s.g", ["both", "both"]),
        ("t LEFT SEMI JOIN s ON t.g = s.g", ["linear", "nullable"]),
        ("t LEFT JOIN s ON t.g = s.g JOIN a ON a.id = t.id", ["linear", "nullable", "linear"]),
    ],
)
def test_tables_have_roles_in_joins(joins: str, roles: list[str]) -> None:
    shape = shape_of(f"SELECT t.id FROM {joins}")
    assert [member.role.value for member in shape.members] == roles
    assert all(bool(m.links) == (m.role is not shapes.Role.LINEAR) for m in shape.members)


@pytest.mark.parametrize(
    "joins",
    [
        "t FULL JOIN s ON t.g = s.g JOIN a ON a.id = t.id",
        "t JOIN a ON a.id = t.id RIGHT JOIN s ON t.g = s.g",
        "t LEFT JOIN s ON upper(t.g) = s.g",
    ],
)
def test_outer_joins_without_a_rule(joins: str) -> None:
    shape = shape_of(f"SELECT t.id FROM {joins}")
    assert shape.reason is not None
    assert shape.reason.code == "OUTER_JOIN"


LINKS = [
    (
        "t, s, a WHERE t.g = s.g AND w = a.x AND t.x > 0",
        {"t": "g=s.g", "s": "g=t.g w=a.x", "a": "x=s.w"},
    ),
    ("t JOIN s ON t.g = s.g AND t.x <=> s.w", {"t": "g=s.g", "s": "g=t.g"}),
    ("t JOIN s USING (g)", {"s": "g=t.g"}),
    # Rows of the left side stay in the result without a match.
    (
        "t LEFT JOIN s ON t.g = s.g JOIN a ON a.id = t.id",
        {"s": "g=t.g", "t": "id=a.id", "a": "id=t.id"},
    ),
    ("t LEFT ANTI JOIN s ON t.g = s.g", {"s": "g=t.g"}),
    ("t RIGHT JOIN s ON t.g = s.g", {}),
    ("t FULL JOIN s ON t.g = s.g", {}),
    ("t, s WHERE t.g = s.g OR t.x = s.w", {}),
    ("t, s WHERE upper(t.g) = s.g", {}),
]


def joined(joins: str) -> tuple[definition.Query, tuple[shapes.Member, ...]]:
    """Return a query of joined tables, and the tables."""
    query = definition.parse_query(f"SELECT t.id FROM {joins}")
    members = shapes.read_joins(query, COLUMNS)
    assert not isinstance(members, definition.Reason)
    return query, members


@pytest.mark.parametrize(("joins", "links"), LINKS)
def test_equalities_that_joined_rows_fulfil(joins: str, links: dict[str, str]) -> None:
    found = shapes.row_links(*joined(joins), COLUMNS)
    shown = {
        alias: " ".join(f"{one.own}={one.alias}.{one.column}" for one in some)
        for alias, some in found.items()
    }
    assert shown == links


CONDITIONS = [
    (
        "t, s WHERE t.g = s.g AND t.x > 0 AND (s.w = 1 OR s.w IS NULL) AND t.x <> t.id",
        {"t": "(o.x > 0) AND (o.x <> o.id)", "s": "(o.w = 1 OR o.w IS NULL)"},
    ),
    ("t JOIN s ON t.g = s.g AND s.w = 1 AND x = 2", {"s": "(o.w = 1)", "t": "(o.x = 2)"}),
    # A row of the left side stays in the result, whatever the condition of the join says.
    ("t LEFT JOIN s ON t.g = s.g AND t.x = 1 AND s.w = 1 WHERE s.w IS NULL", {}),
    ("t LEFT SEMI JOIN s ON t.g = s.g AND t.x = 1 WHERE t.id = 2", {"t": "(o.id = 2)"}),
    ("t RIGHT JOIN s ON t.g = s.g WHERE t.x = 1 AND s.w = 2", {"s": "(o.w = 2)"}),
    ("t FULL JOIN s ON t.g = s.g WHERE t.x = 1", {}),
    ("t, s WHERE t.g = 1 OR s.g = 1", {}),
    ("t, s WHERE g = 'a' AND 1 = 1", {}),
    ("t WHERE exists(array(t.x), x -> x > 1)", {}),
]


@pytest.mark.parametrize(("joins", "conditions"), CONDITIONS)
def test_conditions_that_rows_of_one_table_fulfil(joins: str, conditions: dict[str, str]) -> None:
    found = shapes.row_conditions(*joined(joins), COLUMNS, "o")
    assert {alias: text.replace("`", "") for alias, text in found.items()} == conditions


def test_what_is_no_query_is_refused() -> None:
    with pytest.raises(UsageError, match="one query"):
        definition.parse_query("DELETE FROM t")
    with pytest.raises(UsageError, match="one query"):
        definition.parse_query("SELECT 1; SELECT 2")
    with pytest.raises(QueryError, match="can't be parsed"):
        definition.parse_query("SELECT FROM WHERE (")


def test_the_documentation_lists_every_reason() -> None:
    text = (PROJECT / "docs" / "views.md").read_text(encoding="utf-8")
    for code, words in (definition.QUERY_REASONS | definition.STATE_REASONS).items():
        assert f"| `{code}` | {words} |" in text
    assert "| `SOURCE_GONE` |" in text
