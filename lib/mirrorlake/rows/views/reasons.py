"""Why a refresh is full: a code for programs, a text for people, and the fix if there is one.

The codes are listed in `docs/views.md`, in the manner of Databricks'
`MATERIALIZED_VIEW_NOT_INCREMENTALIZABLE`.
"""

from __future__ import annotations

from dataclasses import dataclass

# What a query can be that no rule covers.
QUERY_REASONS = {
    "AGGREGATE_OF_WINDOW": "a window over groups has no rule",
    "DISTINCT_OF_GROUPS": "DISTINCT over groups or windows has no rule",
    "GLOBAL_AGGREGATE": "without GROUP BY only sums and counts can be kept up to date",
    "GROUPING_SETS": "ROLLUP, CUBE and GROUPING SETS have no rule",
    "JOIN_KIND": "NATURAL, LATERAL and other special joins have no rule",
    "LATERAL_VIEW": "LATERAL VIEW, PIVOT and table functions have no rule",
    "LIMIT": "LIMIT keeps rows that depend on all others",
    "NESTED_COLUMN": "rows with nested values can't be distinguished by their hash",
    "NONDETERMINISTIC": "a function returns other values at each call",
    "ORDER_DEPENDENT": "an aggregate depends on the order in which rows are read",
    "OUTER_JOIN": "an outer join has a rule only on equal columns, and FULL only with two tables",
    "SET_OPERATION": "UNION, INTERSECT and EXCEPT have no rule",
    "STAR": "this `*` can't be expanded into columns",
    "SUBQUERY": "subqueries and WITH have no rule",
    "SYNTAX": "a clause of the query has no rule",
    "TIME_TRAVEL": "a table at a fixed version has no changes",
    "UNKNOWN_FUNCTION": "a function is not one of Spark's own, so what it does is unknown",
    "WINDOW_WITHOUT_PARTITION": "windows that share no PARTITION BY depend on all rows",
}
# What can happen to a view or its sources.
STATE_REASONS = {
    "ASKED": "a full refresh was asked for",
    "COST": "a full refresh is expected to be cheaper",
    "FIRST": "the view was never filled",
    "STATE_LOST": "the log no longer says which versions the view shows",
    "VIEW_CHANGED": "another writer changed the view's table",
    "SOURCE_RECREATED": "a source was created again",
    "FEED_OFF": "a source had no change feed, and no row ids to find its changes by",
    "FEED_VACUUMED": "files of a source's change feed are gone",
    "FEED_RETENTION": "a source's changes are older than Delta's retention allows",
    "LOG_LOST": "a source's log no longer reaches back to the version that the view shows",
    "SCHEMA_CHANGED": "a source's columns changed, and its feed can't be read across that",
    "OLD_VERSION_LOST": "the version of a source that the view shows can't be read any more",
    "COLUMNS_CHANGED": "the view's own columns have other types now",
}


@dataclass(frozen=True)
class Reason:
    """Why a refresh is full.

    Attributes:
        code: one of the above.
        why: what exactly it is here.
        fix: what would let the next refresh be incremental; may be empty.
    """

    code: str
    why: str
    fix: str = ""

    def __repr__(self) -> str:
        text = f"{self.code}: {self.why}"
        return f"{text} ({self.fix})" if self.fix else text


def reason(code: str, what: str = "") -> Reason:
    """A reason by its code, with what it is about."""
    why = QUERY_REASONS.get(code) or STATE_REASONS[code]
    return Reason(code, f"{what}: {why}" if what else why)
