"""Reference models: net changes and dimensions as simple loops over changes, and their checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Row = tuple[Any, ...]
GOES = {"delete": 0, "update_preimage": 0, "update_postimage": 1, "insert": 1}


def net_model(changes: list[tuple[int, str, Row]], keys: int) -> list[tuple[int, str, Row]]:
    """Return net changes as `(version, kind, row)`; a row's first `keys` values are its key."""
    before: dict[Row, Counter[Row]] = {}
    after: dict[Row, Counter[Row]] = {}
    last: dict[Row, int] = {}
    for version, kind, row in sorted(changes, key=lambda c: (c[0], GOES[c[1]])):
        key = row[:keys]
        rows = after.setdefault(key, Counter())
        was = before.setdefault(key, Counter())
        last[key] = version
        if GOES[kind]:
            rows[row] += 1
        elif rows[row]:
            rows[row] -= 1
        else:
            was[row] += 1  # the row existed before the range
    found: list[tuple[int, str, Row]] = []
    for key, version in last.items():
        gone, came = before[key] - after[key], after[key] - before[key]
        update = gone.total() == came.total() == 1
        names = ("update_preimage", "update_postimage") if update else ("delete", "insert")
        for name, rows in zip(names, (gone, came), strict=True):
            found += [(version, name, row) for row in rows.elements()]
    return found


RESERVED = ("_change_type", "_commit_version", "_commit_timestamp")  # the columns of a change feed


@dataclass(frozen=True)
class Event:
    """A change of a dimension: `row` is None for a delete; `key` is None for a truncate."""

    key: Row | None
    sequence: int
    row: Row | None


def _by_key(events: list[Event]) -> dict[Row, list[Event]]:
    found: dict[Row, dict[int, Event]] = {}
    for event in events:
        if event.key is not None:
            found.setdefault(event.key, {})[event.sequence] = event
    return {key: [one[s] for s in sorted(one)] for key, one in found.items()}


def _filled(row: Row, before: Row | None, ignore_nulls: bool) -> Row:
    if not ignore_nulls or before is None:
        return row
    return tuple(old if new is None else new for new, old in zip(row, before, strict=True))


def type_1_model(events: list[Event], *, ignore_nulls: bool = False) -> dict[Row, Row]:
    """Return the latest row of each key after all changes, applied in order."""
    emptied = max((e.sequence for e in events if e.key is None), default=-1)
    table: dict[Row, Row] = {}
    for key, changes in _by_key(events).items():
        for event in changes:
            if event.sequence < emptied:
                continue
            if event.row is None:
                table.pop(key, None)
            else:
                table[key] = _filled(event.row, table.get(key), ignore_nulls)
    return table


def type_2_model(
    events: list[Event], *, ignore_nulls: bool = False, tracked: int | None = None
) -> Counter[tuple[Any, ...]]:
    """Return the periods of each key: key, row, start, end.

    `tracked`: how many of a row's first values start a new period; by default any change does.
    """
    periods: list[list[Any]] = []
    for key, changes in _by_key(events).items():
        current: list[Any] | None = None
        for event in changes:
            if event.row is None:
                if current is None:  # no period to end, so it is kept as an empty period
                    periods.append([key, None, event.sequence, event.sequence])
                else:
                    current[3] = event.sequence
                current = None
                continue
            row = _filled(event.row, current[1] if current else None, ignore_nulls)
            if (
                current is not None
                and tracked is not None
                and current[1][:tracked] == row[:tracked]
            ):
                current[1] = row
                continue
            if current is not None:
                current[3] = event.sequence
            current = [key, row, event.sequence, None]
            periods.append(current)
    return Counter(tuple(period) for period in periods)


def check_equal(what: str, found: Counter[Row], expected: Counter[Row]) -> None:
    """Fail with the rows that are too many, and with those that are missing."""
    if found != expected:
        raise AssertionError(f"{what}: {found - expected} instead of {expected - found}")


def check_fold(
    changes: Counter[Row], expected: Mapping[int, Counter[Row]], before: Counter[Row] | None = None
) -> None:
    """Check that changes lead to the rows of each version.

    Args:
        changes: the changes, as `(version, kind, *row)`.
        expected: the rows by version.
        before: the rows before the first change; by default none.
    """
    by_version: dict[int, Counter[Row]] = {version: Counter() for version in expected}
    for (version, kind, *row), count in changes.items():
        found = by_version.setdefault(version, Counter())
        found[tuple(row)] += count if GOES[kind] else -count
    rows = Counter(before)
    for version in sorted(by_version):
        rows.update(by_version[version])
        if version in expected:
            check_equal(f"the changes up to version {version}", rows, expected[version])


def check_periods(periods: Counter[Row], expected: Mapping[int, Counter[Row]]) -> None:
    """Check that a type 2 dimension, as `(*row, start, end)`, has the rows of each version."""
    changes: Counter[Row] = Counter()
    for (*row, start, end), count in periods.items():
        changes[(start, "insert", *row)] += count
        if end is not None:
            changes[(end, "delete", *row)] += count
    check_fold(changes, expected)
