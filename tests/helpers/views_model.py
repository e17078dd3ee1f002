"""The slow, obvious reference model of views: it computes a query's result by loops over rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

Row = tuple[Any, ...]  # example, id, g, x of the table t; example, g, w of the table s
COLUMNS = {"t": ("example", "id", "g", "x"), "s": ("example", "g", "w")}


def _matches(one: Row, other: Row) -> bool:
    """Check whether rows of t and s are joined: example and g are equal, and no g is NULL."""
    return one[0] == other[0] and one[2] == other[1] and one[2] is not None


def _groups(rows: list[Row], key: Any) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _known(values: Any) -> list[Any]:
    return [value for value in values if value is not None]


def _sum(values: Any) -> Any:
    known = _known(values)
    return sum(known) if known else None


def _mean(values: Any) -> Any:
    known = _known(values)
    return sum(known) / len(known) if known else None


def rows_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    return Counter((e, i, x * 2) for e, i, _, x in t if x is not None and x > 0)


def sums_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    found = _groups(t, lambda row: (row[0], row[2]))
    return Counter(
        (e, g, len(rows), _sum(r[3] for r in rows), _mean(r[3] for r in rows))
        for (e, g), rows in found.items()
    )


def distinct_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    return Counter({(e, g, x) for e, _, g, x in t})


def groups_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    found = _groups(t, lambda row: (row[0], row[2]))
    return Counter(
        (e, g, min(_known(r[3] for r in rows), default=None), len({*_known(r[3] for r in rows)}))
        for (e, g), rows in found.items()
    )


def extremes_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for (e, g), rows in _groups(t, lambda row: (row[0], row[2])).items():
        values = _known(row[3] for row in rows)
        late = max((i for _, i, _, x in rows if x is not None and x > 0), default=None)
        least, most = min(values, default=None), max(values, default=None)
        found[e, g, least, most, late, len(rows), _sum(values)] += 1
    return found


def having_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    found = _groups(t, lambda row: (row[0], row[2]))
    return Counter((e, g, len(rows)) for (e, g), rows in found.items() if len(rows) > 1)


def join_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    return Counter((a[0], a[1], b[2]) for a in t for b in s if _matches(a, b))


def joined_sums_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    joined = [(a[0], b[2], a[3]) for a in t for b in s if _matches(a, b)]
    found = _groups(joined, lambda row: row[:2])
    return Counter((e, w, len(rows), _sum(r[2] for r in rows)) for (e, w), rows in found.items())


def joined_extremes_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    joined = [(a[0], b[2], a[1], a[3]) for a in t for b in s if _matches(a, b)]
    return Counter(
        (e, w, max(_known(r[3] for r in rows), default=None), min(r[2] for r in rows))
        for (e, w), rows in _groups(joined, lambda row: row[:2]).items()
    )


def self_join_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    return Counter(
        (a[0], a[1], b[1])
        for a in t
        for b in t
        if a[0] == b[0] and a[2] == b[2] and a[2] is not None and a[1] < b[1]
    )


def left_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for a in t:
        with_it = [b[2] for b in s if _matches(a, b)] or [None]
        found.update((a[0], a[1], w) for w in with_it)
    return found


def right_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for b in s:
        with_it = [a[1] for a in t if _matches(a, b)] or [None]
        found.update((b[0], i, b[2]) for i in with_it)
    return found


def full_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    alone = [b for b in s if not any(_matches(a, b) for a in t)]
    unmatched = Counter((None, None, b[0], b[2]) for b in alone)
    found: Counter[Row] = Counter()
    for a in t:
        with_it = [(b[0], b[2]) for b in s if _matches(a, b)] or [(None, None)]
        found.update((a[0], a[1], *one) for one in with_it)
    return found + unmatched


def anti_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    return Counter((a[0], a[1]) for a in t if not any(_matches(a, b) for b in s))


def window_view(t: list[Row], s: list[Row]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for (e, g), rows in _groups(t, lambda row: (row[0], row[2])).items():
        ids = [row[1] for row in rows]
        found.update((e, i, g, 1 + sum(other < i for other in ids)) for i in ids)
    return found


# The queries of the golden matrix and the property test, by the rule that must refresh them.
VIEWS = {
    "rows": ("rows", "SELECT example, id, x * 2 AS y FROM t WHERE x > 0", rows_view),
    "sums": (
        "sums",
        "SELECT example, g, count(*) AS n, sum(x) AS s, avg(x) AS a FROM t GROUP BY example, g",
        sums_view,
    ),
    "distinct": ("sums", "SELECT DISTINCT example, g, x FROM t", distinct_view),
    "extremes": (
        "extremes",
        "SELECT example, g, min(x) AS least, max(x) AS most, max(id) FILTER (WHERE x > 0) AS late,"
        " count(*) AS n, sum(x) AS s FROM t GROUP BY example, g",
        extremes_view,
    ),
    "groups": (
        "groups",
        "SELECT example, g, min(x) AS m, count(DISTINCT x) AS n FROM t GROUP BY example, g",
        groups_view,
    ),
    "having": (
        "groups",
        "SELECT example, g, count(*) AS n FROM t GROUP BY 1, 2 HAVING count(*) > 1",
        having_view,
    ),
    "join": (
        "rows",
        "SELECT t.example, t.id, s.w FROM t JOIN s ON t.example = s.example AND t.g = s.g",
        join_view,
    ),
    "joined_sums": (
        "sums",
        "SELECT example, w, count(*) AS n, sum(x) AS s FROM t JOIN s USING (example, g)"
        " GROUP BY example, w",
        joined_sums_view,
    ),
    "joined_extremes": (
        "extremes",
        "SELECT example, w, max(x) AS most, min(id) AS first FROM t JOIN s USING (example, g)"
        " GROUP BY example, w",
        joined_extremes_view,
    ),
    "self_join": (
        "rows",
        "SELECT a.example, a.id AS i, b.id AS j FROM t a JOIN t b"
        " ON a.example = b.example AND a.g = b.g AND a.id < b.id",
        self_join_view,
    ),
    "left_join": (
        "rows",
        "SELECT t.example, t.id, s.w FROM t LEFT JOIN s ON t.example = s.example AND t.g = s.g",
        left_view,
    ),
    "right_join": (
        "rows",
        "SELECT s.example, t.id, s.w FROM t RIGHT JOIN s ON t.example = s.example AND t.g = s.g",
        right_view,
    ),
    "full_join": (
        "rows",
        "SELECT t.example, t.id, s.example AS other, s.w FROM t FULL JOIN s"
        " ON t.example = s.example AND t.g = s.g",
        full_view,
    ),
    "anti_join": (
        "rows",
        "SELECT example, id FROM t LEFT ANTI JOIN s ON t.example = s.example AND t.g = s.g",
        anti_view,
    ),
    "windows": (
        "partitions",
        "SELECT example, id, g, rank() OVER (PARTITION BY example, g ORDER BY id) AS r FROM t",
        window_view,
    ),
}
