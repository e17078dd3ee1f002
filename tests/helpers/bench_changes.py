"""Small commits for the mirror's bench: few changes of a large table, and of many tables.

Two lakes with the same table get the same changes in turns: one with the mirror, the other with
Delta's MERGE of the same file, in which each id occurs once. Both have the same properties, with
the change feed and row tracking, and with deletion vectors unless a part says otherwise. The first
change of each does not count. For large tables it is the first three, because the JVM compiles the
code of a search until then.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from helpers.bench import BenchResult, compare, join_results
from helpers.bench_data import copy_tree, initial_files, rows, timed, write_files, zone
from helpers.markers import MARKER, Marker
from helpers.places import TABLES, ZONE
from mirrorlake import Lake

ROWS, FILES, TABLES_AT_ONCE, CYCLES = 2_000_000, 20, 200, 1_000
WARM_UPS = 3  # of large tables
Merge = Callable[[str, str], None]
Summary = Callable[[str], tuple[Any, ...]]


def upserts(count: int, number: int, known: int = ROWS, *, more: int = 0) -> pa.Table:
    """Return a file of changes of existing rows, spread over all of them; see `rows`."""
    chance = np.random.default_rng(number)
    ids = np.sort(chance.choice(known, count, replace=False))
    markers = pa.array(np.full(count, int(Marker.UPSERT), np.int32))
    return rows(ids, number, more=more).append_column(pa.field(MARKER, pa.int32()), markers)


def two_lakes(
    folder: Path,
    *,
    count: int = ROWS,
    more: int = 0,
    vectors: bool = True,
    peer_has_vectors: bool = True,
) -> tuple[Lake, Lake]:
    """Create two lakes with the same rows in a table `t`."""
    write_files(initial_files(0, count, FILES, more=more), zone(folder / "ours"))
    ours = Lake(folder / "ours")
    if peer_has_vectors:
        assert not ours.mirror(deletion_vectors=vectors).failed
    peer = Lake(copy_tree(folder / "ours", folder / "peer"))
    if not peer_has_vectors:
        for lake, vectors in ((ours, True), (peer, False)):
            assert not lake.mirror(deletion_vectors=vectors).failed
    return ours, peer


def against_merge(
    folder: Path,
    pairs: int,
    counts: dict[int, str],
    merge: Merge,
    summary: Summary,
    *,
    known: int = ROWS,
    more: int = 0,
    vectors: bool = True,
    warm_ups: int = 1,
) -> BenchResult:
    """Compare this number of changes of a table of `known` rows with a MERGE."""
    ours, peer = two_lakes(folder, count=known, more=more, vectors=vectors)
    target = peer.storage.path(f"{TABLES}/t")
    number = FILES
    results = []

    def mirrored(left: Iterator[str]) -> float:
        copy_file(next(left), Path(ours.storage.root) / ZONE / "t")
        return timed(lambda: mirror(ours))

    def merged(left: Iterator[str]) -> float:
        file = next(left)
        return timed(lambda: merge(target, file))

    for count, what in counts.items():
        places = range(1, pairs + warm_ups + 1)
        batches = [upserts(count, number + place, known, more=more) for place in places]
        files = write_files(batches, folder / f"{count} changes", number + 1)
        number += len(files)

        mine, theirs = partial(mirrored, iter(files)), partial(merged, iter(files))
        results.append(compare("mirror", what, mine, theirs, pairs, warm_ups=warm_ups))
    assert summary(ours.storage.path(f"{TABLES}/t")) == summary(target)
    return join_results("mirror", results)


def against_delta_rs(
    folder: Path, pairs: int, merge: Callable[[str, pa.Table], None], summary: Summary
) -> BenchResult:
    """Compare 1,000 changes with delta-rs on a plain table of the same rows."""
    tables = list(initial_files(0, ROWS, FILES))
    write_files(tables, zone(folder / "ours"))
    ours, plain = Lake(folder / "ours"), str(folder / "plain")
    assert not ours.mirror(deletion_vectors=True).failed
    write_deltalake(plain, pa.concat_tables(tables))
    batches = [upserts(1000, FILES + place) for place in range(1, pairs + 2)]
    files = iter(write_files(batches, folder / "changes", FILES + 1))
    left = iter(batches)

    def mirrored() -> float:
        copy_file(next(files), Path(ours.storage.root) / ZONE / "t")
        return timed(lambda: mirror(ours))

    def merged() -> float:
        batch = next(left)
        return timed(lambda: merge(plain, batch))

    what = "1,000 changes of 2,000,000 rows, against delta-rs on a plain table"
    result = compare("mirror", what, mirrored, merged, pairs)
    assert summary(ours.storage.path(f"{TABLES}/t")) == summary(plain)
    return result


def grown(folder: Path, pairs: int) -> BenchResult:
    """Compare 2,000,000 changed rows in a table of ten times as many with a table of just these."""
    lakes = {"large": 10 * ROWS, "small": ROWS}
    for name, known in lakes.items():
        number = 1
        for begin in range(0, known, ROWS):
            tables = initial_files(begin, ROWS, FILES)
            number += len(write_files(tables, zone(folder / name), number))
            assert not Lake(folder / name).mirror(deletion_vectors=True).failed
    number = 10 * FILES
    results = []
    for count, what in {1: "1 change", 1000: "1,000 changes"}.items():
        batches = [upserts(count, number + place) for place in range(1, pairs + 2)]

        def mirrored(name: str, left: Iterator[pa.Table]) -> float:
            lake = Lake(folder / name)
            last = max(entry.number for entry in lake.operations.ledger("t").entries)
            write_files([next(left)], zone(folder / name), last + 1)
            return timed(lambda: mirror(lake))

        large, small = (partial(mirrored, name, iter(batches)) for name in lakes)
        of = f"{what} of 20,000,000 rows, among 2,000,000 of them, against 2,000,000"
        results.append(compare("mirror", of, large, small, pairs))
        number += len(batches)
    return join_results("mirror", results)


def spread(folder: Path, pairs: int) -> BenchResult:
    """Compare the time of 1,000 changes spread over 20,000,000 rows with that over 2,000,000."""
    known = {"large": 10 * ROWS, "small": ROWS}
    numbers = {}
    for name, count in known.items():
        files = initial_files(0, count, count * FILES // ROWS)
        numbers[name] = iter(range(len(write_files(files, zone(folder / name))) + 1, 1_000))
        assert not Lake(folder / name).mirror().failed

    def mirrored(name: str) -> float:
        number = next(numbers[name])
        write_files([upserts(1_000, number, known[name])], zone(folder / name), number)
        return timed(lambda: mirror(Lake(folder / name)))

    what = "1,000 changes spread over 20,000,000 rows, against 2,000,000"
    large, small = (partial(mirrored, name) for name in known)
    return compare("mirror", what, large, small, pairs, warm_ups=WARM_UPS)


def cycles(folder: Path, summary: Summary) -> BenchResult:
    """Measure 1,000 cycles of 1,000 changes, and reads after every 100th.

    The first cycle does not count.
    """
    ours, _ = two_lakes(folder)
    path = ours.storage.path(f"{TABLES}/t")
    seconds: dict[bool, list[float]] = {True: [], False: []}  # with and without a compaction
    reads = []
    for number in range(FILES + 1, FILES + 1 + CYCLES):
        write_files([upserts(1_000, number)], Path(ours.storage.root) / ZONE / "t", number)
        before = DeltaTable(path).version()
        took = timed(lambda: mirror(ours))
        if number > FILES + 1:
            seconds[DeltaTable(path).version() > before + 1].append(took)
        if number % 100 == FILES:
            reads.append(timed(lambda: summary(path)))
    target = str(copy_tree(Path(path), folder / "optimised"))
    for statement in ("OPTIMIZE delta.`{}`", "REORG TABLE delta.`{}` APPLY (PURGE)"):
        ours.spark.sql(statement.format(target)).collect()
    assert summary(path) == summary(target)
    optimised = statistics.median(timed(lambda: summary(target)) for _ in range(len(reads)))
    facts = [DeltaTable(table).get_add_actions(flatten=True) for table in (path, target)]
    files, best = (pa.table(found) for found in facts)
    longest = max(map(max, seconds.values()))
    middle = statistics.median(seconds[True] + seconds[False])
    what = f"{CYCLES:,} cycles of 1,000 changes"
    return BenchResult(
        "mirror",
        {
            f"{what}, median": round(middle, 3),
            f"{what}, longest": round(longest, 3),
            f"{what}, longest with compaction": round(max(seconds[True]), 3),
            f"{what}, reading": round(statistics.median(reads), 3),
            f"{what}, reading, optimised": round(optimised, 3),
        },
        {
            f"{what}, median against longest": round(middle / longest, 2),
            f"{what}, reading against optimised": round(optimised / statistics.median(reads), 2),
        },
        sizes={
            f"{what}, bytes": pc.sum(files["size_bytes"]).as_py(),
            f"{what}, bytes, optimised": pc.sum(best["size_bytes"]).as_py(),
        },
        counts={
            f"{what}, compactions": len(seconds[True]),
            f"{what}, files": files.num_rows,
        },
    )


def bulk(folder: Path, pairs: int, changes: list[pa.Table], summary: Summary) -> BenchResult:
    """Compare many changes in one cycle with the mirror on a table without deletion vectors."""
    lakes = two_lakes(folder, peer_has_vectors=False)
    for lake in lakes:
        write_files(changes, Path(lake.storage.root) / ZONE / "t", FILES + 1)
    ends = []

    def cycle(template: str) -> float:
        number = len(ends)
        lake = Lake(copy_tree(folder / template, folder / f"{template} {number}"))
        seconds = timed(lambda: mirror(lake))
        ends.append(summary(lake.storage.path(f"{TABLES}/t")))
        return seconds

    what = "1,000,000 changes of 2,000,000 rows, against files written anew"
    result = compare("mirror", what, lambda: cycle("ours"), lambda: cycle("peer"), pairs)
    assert len(set(ends)) == 1, ends
    return result


def many_tables(folder: Path, pairs: int, merge: Merge) -> BenchResult:
    """Compare one cycle over 200 tables with one changed row each with 200 MERGEs in sequence."""
    names = [f"t{number}" for number in range(TABLES_AT_ONCE)]
    for number, name in enumerate(names):
        write_files([rows(np.arange(100), number)], zone(folder / "ours", name))
    ours = Lake(folder / "ours")
    assert not ours.mirror(deletion_vectors=True).failed
    copy_tree(folder / "ours", folder / "peer")
    numbers, merges = iter(range(2, pairs + 3)), iter(range(2, pairs + 3))

    def mirrored() -> float:
        number = next(numbers)
        for name in names:
            write_files([upserts(1, number, 100)], folder / "ours" / ZONE / name, number)
        return timed(lambda: mirror(ours))

    def merged() -> float:
        number = next(merges)
        (file,) = write_files([upserts(1, number, 100)], folder / "changes", number)
        targets = [str(folder / "peer" / TABLES / name) for name in names]
        return timed(lambda: [merge(target, file) for target in targets])

    what = "a change in each of 200 tables, against one MERGE after the other"
    return compare("mirror", what, mirrored, merged, pairs)


def reads(folder: Path, pairs: int, summary: Summary) -> BenchResult:
    """Compare reads of a table after 100 small cycles with the same table just optimised."""
    ours, peer = two_lakes(folder)
    for number in range(FILES + 1, FILES + 101):
        folder_of_t = Path(ours.storage.root) / ZONE / "t"
        write_files([upserts(1000, number)], folder_of_t, number)
        mirror(ours)
    path = ours.storage.path(f"{TABLES}/t")
    target = copy_tree(Path(path), Path(f"{peer.storage.root}/optimised"))
    ours.spark.sql(f"OPTIMIZE delta.`{target}`").collect()
    ours.spark.sql(f"REORG TABLE delta.`{target}` APPLY (PURGE)").collect()
    assert summary(path) == summary(str(target))
    what = "reading after 100 cycles of 1,000 changes, against the same just optimised"
    return compare(
        "mirror",
        what,
        lambda: timed(lambda: summary(path)),
        lambda: timed(lambda: summary(str(target))),
        5 * pairs,
    )


def mirror(lake: Lake) -> None:
    report = lake.mirror()
    assert not report.failed, report.tables


def copy_file(source: str, folder: Path) -> None:
    (folder / Path(source).name).write_bytes(Path(source).read_bytes())
