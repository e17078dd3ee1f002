"""Archives and dimensions of any table: what a run did in figures, or why there is nothing to do.

`Archive` and `follow_feed` do the work. Here is what a table of somebody else's needs besides: a
feed that is off, keys that nobody declared, a feed that does not reach back to the first version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import functions as F

from mirrorlake.delta.commits import read_versions
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.table import Table
from mirrorlake.errors import UsageError
from mirrorlake.feed.archive import Archive
from mirrorlake.feed.changes import key_columns
from mirrorlake.feed.cursor import Cursor
from mirrorlake.feed.dimension import END, SEQUENCE, START, Dimension
from mirrorlake.feed.doctor import examine
from mirrorlake.feed.readable import as_texts, short
from mirrorlake.feed.report import KINDS
from mirrorlake.feed.scd import apply_snapshot, follow_feed
from mirrorlake.feed.schema import RESERVED, enable_feed
from mirrorlake.mirror.properties import declared_keys
from mirrorlake.names import TableName, as_table
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.sql import query_errors, quote

_FEED_OFF = (
    "The change feed of {table} is off: there is nothing to follow. Set enable_feed to switch it"
    " on; changes are recorded from then on."
)
_NOTHING_MORE = TextTable((), ())
_MOST_VERSIONS, _MOST_KEYS, _MOST_PERIODS = 20, 12, 40


@dataclass(frozen=True)
class FollowReport(Result):
    """What became of an archive or a dimension.

    Attributes:
        table: whose feed.
        into: the archive or dimension.
        did: what the run did, or would do, in words.
        why_not: why nothing was done; empty if something was, or nothing was new.
        facts: figures by name, in order.
        details: of an archive its newest versions, of a dimension its keys with most periods.
        periods: of a type 2 dimension those keys' periods: first version, and the version that
            ended it or None.
        newest: the newest version of the table.
    """

    table: str
    into: str
    did: str
    why_not: str
    facts: dict[str, int]
    details: TextTable
    periods: dict[str, tuple[tuple[int, int | None], ...]]
    newest: int

    def shown(self) -> TextTable:
        """What was done, and the figures."""
        rows: list[tuple[Any, ...]] = [("table", self.table), ("into", self.into)]
        rows.append(("why nothing was done", self.why_not) if self.why_not else ("done", self.did))
        rows += [(name, f"{value:,}") for name, value in self.facts.items()]
        return TextTable(("what", "value"), tuple(rows))

    def __repr__(self) -> str:
        return f"{self.table} → {self.into}: {self.why_not or self.did}"


@query_errors()
def archive_table(
    table: Table, into: str = "", *, enable: bool = False, dry_run: bool = False
) -> FollowReport:
    """Appends what is new in a table's feed to its archive; see `Lake.archive`.

    Args:
        table: whose feed.
        into: the archive's name; by default the table's with `_history`.
        enable: switch the table's feed on, where it is off.
        dry_run: only say what is new.

    Raises:
        FeedError: the feed no longer holds what follows, or the archive is another table's.

    Example:
        >>> archive_table(lake.table("sales"))  # doctest: +SKIP
        sales → sales_history: 3 new versions, archived up to 7
    """
    target = _target(table, into, "{}_history")
    if not _switch_on(table, enable=enable and not dry_run):
        return _nothing(table, target, _FEED_OFF.format(table=table.name))
    archive = Archive(table, target)
    done = archive.plan() if dry_run else archive.run()
    did = repr(done).partition(": ")[2]
    facts = {"versions behind": done.lag.versions}
    if read_snapshot(table.storage, target.table_path) is None:
        return _report(table, target, did, facts)
    kind, version, moment = RESERVED
    rows = Table(table.spark, table.storage, target).rows()
    counted = [F.count_if(F.col(kind) == feed).alias(name) for name, feed in KINDS.items()]
    by_version = rows.groupBy(version).agg(F.max(moment).alias("made (UTC)"), *counted)
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in KINDS]
    (line,) = by_version.agg(F.count(F.lit(1)).alias("versions"), *sums).collect()
    facts |= {"versions archived": line["versions"]}
    facts |= {f"rows {name}": line[name] for name in KINDS}
    newest = by_version.orderBy(F.desc(version)).limit(_MOST_VERSIONS + 1)
    moments = F.date_format("made (UTC)", "yyyy-MM-dd HH:mm:ss").alias("made (UTC)")
    found = [tuple(row) for row in newest.select(version, moments, *KINDS).collect()]
    details = TextTable(
        ("version", "made (UTC)", *KINDS),
        tuple(found[:_MOST_VERSIONS]),
        more=len(found) > _MOST_VERSIONS,
    )
    return _report(table, target, did, facts, details)


@query_errors()
def update_dimension(
    table: Table,
    into: str = "",
    *,
    keys: Sequence[str] = (),
    stored_as: int = 2,
    enable: bool = False,
    dry_run: bool = False,
) -> FollowReport:
    """Brings a dimension up to date with a table's feed; see `Lake.update_dimension`.

    Where the feed does not hold all from version 0 on, a new dimension starts with the newest
    version's rows.

    Args:
        table: whose feed.
        into: the dimension's name; by default the table's after `dim_`.
        keys: the key columns; by default those that the table declares.
        stored_as: 1 keeps the latest row of each key, 2 all of them with their periods.
        enable: switch the table's feed on, where it is off.
        dry_run: only say what is new.

    Raises:
        FeedError: the feed no longer holds what follows.
        UsageError: a key is no column, or `into` is another kind of table.

    Example:
        >>> update_dimension(lake.table("planes"), keys=["tailnum"])  # doctest: +SKIP
        planes → dim_planes: versions 0 to 4
    """
    target = _target(table, into, "dim_{}")
    if stored_as not in (1, 2):
        raise UsageError(f"There is no type {stored_as}.", hint="choose 1 or 2.")
    if not (keys or declared_keys(table.snapshot().properties)):
        why = "The table declares no keys: say which columns tell its rows apart (keys)."
        return _nothing(table, target, why)
    chosen = key_columns(table, list(keys) or None)
    _check_target(table, target, stored_as)
    if not _switch_on(table, enable=enable and not dry_run):
        return _nothing(table, target, _FEED_OFF.format(table=table.name))
    kind: Literal[1, 2] = 1 if stored_as == 1 else 2
    cursor = Cursor(table, f"dimension {target}")
    latest = read_versions(table.storage, table.name.table_path).latest
    if cursor.position < 0 and not _holds_all(table):
        did = f"the rows of version {latest}, since the feed does not reach back to version 0"
        if not dry_run:
            dimension = Dimension(chosen, RESERVED[1], kind)
            path = table.storage.path(target.table_path)
            apply_snapshot(table.rows(latest), path, dimension, latest)
            cursor.move(latest)
    else:
        batch = follow_feed(table, target, keys=chosen, stored_as=kind, dry_run=dry_run)
        did = repr(batch)
    if dry_run:
        return _report(table, target, f"would take {did}", {})
    return _describe(table, target, did, chosen, stored_as)


def _target(table: Table, into: str, pattern: str) -> TableName:
    name = table.name
    if into.strip():
        return as_table(into.strip())
    return TableName(name.schema, pattern.format(name.name))


def _switch_on(table: Table, *, enable: bool) -> bool:
    """Whether the newest version records its changes; switched on where that is asked for."""
    if table.snapshot().has_feed:
        return True
    if enable:
        enable_feed(table)
    return enable


def _holds_all(table: Table) -> bool:
    timeline = read_versions(table.storage, table.name.table_path)
    return not examine(table, timeline, 0, timeline.latest, files=True).blocking


def _check_target(table: Table, target: TableName, stored_as: int) -> None:
    """Refuses to write into a table that is no dimension of this type."""
    found = read_snapshot(table.storage, target.table_path)
    if found is None or (START if stored_as == 2 else SEQUENCE) in found.schema:
        return
    what = "a dimension of the other type" if {START, SEQUENCE} & {*found.schema} else "a table"
    raise UsageError(f"There is {what} called {target}.", hint="choose another name (into).")


def _describe(
    table: Table, target: TableName, did: str, keys: Sequence[str], stored_as: int
) -> FollowReport:
    if read_snapshot(table.storage, target.table_path) is None:
        return _report(table, target, did, {})
    rows = Table(table.spark, table.storage, target).rows()
    columns = [F.col(quote(key)) for key in keys]
    if stored_as == 1:
        return _report(table, target, did, {"rows": rows.count()})
    is_open = F.col(END).isNull()
    by_key = rows.groupBy(*columns).agg(
        F.count(F.lit(1)).alias(f"{START}s"),
        F.count_if(is_open).alias(f"{END}s"),
        F.sort_array(F.collect_list(F.struct(START, END))).alias(START),
    )
    (line,) = by_key.agg(
        F.count(F.lit(1)).alias("keys"),
        F.coalesce(F.sum(f"{START}s"), F.lit(0)).alias("periods"),
        F.coalesce(F.sum(f"{END}s"), F.lit(0)).alias("keys that are there now"),
        F.coalesce(F.max(f"{START}s"), F.lit(0)).alias("most periods of a key"),
    ).collect()
    most = by_key.withColumn(START, F.slice(START, 1, _MOST_PERIODS))
    most = as_texts(most.orderBy(F.desc(f"{START}s"), *columns).limit(_MOST_KEYS))
    periods = {
        ", ".join(short(row[i]) for i in range(len(keys))): tuple(
            (int(one[0]), None if one[1] is None else int(one[1])) for one in row[START]
        )
        for row in most.collect()
    }
    listed = tuple(
        (key, len(some), ", ".join(f"{a} to {'now' if b is None else b}" for a, b in some[-6:]))
        for key, some in periods.items()
    )
    details = TextTable((", ".join(keys), "periods", "versions, the last six"), listed)
    return _report(table, target, did, line.asDict(), details, periods)


def _report(
    table: Table,
    target: TableName,
    did: str,
    facts: dict[str, int],
    details: TextTable = _NOTHING_MORE,
    periods: dict[str, tuple[tuple[int, int | None], ...]] | None = None,
) -> FollowReport:
    newest = table.snapshot().version
    names = str(table.name), str(target)
    return FollowReport(*names, did, "", facts, details, periods or {}, newest)


def _nothing(table: Table, target: TableName, why: str) -> FollowReport:
    newest = table.snapshot().version
    return FollowReport(str(table.name), str(target), "", why, {}, _NOTHING_MORE, {}, newest)
