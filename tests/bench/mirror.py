"""The mirror against Spark, Delta and delta-rs on the same files.

On both sides all Delta tables have the change feed and row tracking; delta-rs can't write such
tables, so its table is plain. Parts:

- load: 5,000,000 rows in 20 files, against Delta's append and against a plain Parquet copy.
- files: 1,000,000 changes in 20 files on 2,000,000 rows, against one MERGE per file.
- collapsed: the same, against MERGEs of the collapsed batch, by Delta and by delta-rs.
- clustered: the same changes on 20,000,000 rows in the order of their keys; the peer is the mirror
  on 2,000,000 rows, so a ratio of 1 means that the table's size costs nothing.
- small: 1 and 1,000 changes of 2,000,000 rows with deletion vectors, warm, against Delta's MERGE
  of the same file into a table with the same properties; 1,000 also against delta-rs on a plain
  table, without feed and row ids, with the changes in memory.
- sparse: the same with 100,000 changes of random rows.
- plain: 1 and 1,000 changes of 2,000,000 rows without deletion vectors, against the same MERGE.
- wide: 1,000 changes of 5,000,000 rows with 20 columns, with and without deletion vectors, against
  MERGE.
- large: 1,000 changes spread over 20,000,000 rows, against MERGE and against the mirror's cycle on
  2,000,000 rows.
- bulk: 1,000,000 changes in 20 files, against the mirror on a table without deletion vectors.
- reads: a table after 100 cycles of 1,000 changes, against the same table just optimised.
- cycles: 1,000 cycles of 1,000 changes: their median and longest time, and the time of reads
  between them, against the same table just optimised.
- tables: the first load of 200 small tables, against one after the other; then one change in each,
  against one MERGE after the other.
- idle: a cycle over 1,000 idle tables, against a plain recursive listing of the zone.
- memory: peak of the driver's Python process, small by tenfold input, so 1 means no growth.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from helpers import bench_changes
from helpers.bench import BenchResult, compare, join_results, run_script
from helpers.bench_data import (
    COLUMNS,
    change_files,
    collapsed,
    copy_tree,
    initial_files,
    peak_mib,
    rows,
    timed,
    write_files,
    zone,
)
from helpers.markers import MARKER
from helpers.places import TABLES, ZONE
from mirrorlake import Lake, MirrorOptions
from mirrorlake.mirror.state import load_states, save_states
from mirrorlake.spark.session import get_spark
from mirrorlake.storage.files import Storage

PROPERTIES = {"delta.enableChangeDataFeed": "true", "delta.enableRowTracking": "true"}
BASE, CHANGES, FILES = 2_000_000, 1_000_000, 20


def run(pairs: int) -> BenchResult:
    return join_results("mirror", [part(pairs) for part in PARTS.values()])


def load(pairs: int) -> BenchResult:
    with scratch() as folder:
        source = zone(folder / "template")
        files = write_files(initial_files(0, 5_000_000, FILES), source)

        def ours() -> float:
            return mirror_copy(folder)

        def append() -> float:
            return timed(
                lambda: (
                    get_spark()
                    .read.parquet(*files)
                    .write.format("delta")
                    .options(**PROPERTIES)
                    .mode("append")
                    .save(fresh(folder))
                )
            )

        def copy() -> float:
            return timed(lambda: get_spark().read.parquet(*files).write.parquet(fresh(folder)))

        return join_results(
            "mirror",
            [
                compare("mirror", "load, against Delta's append", ours, append, pairs),
                compare("mirror", "load, against a Parquet copy", ours, copy, pairs),
            ],
        )


def files(pairs: int) -> BenchResult:
    with scratch() as folder:
        changes = changed_lake(folder)

        def peer() -> float:
            target = f"{copy_tree(folder / 'template', Path(fresh(folder)))}/{TABLES}/t"
            return timed(lambda: [merge(target, path) for path in changes])

        def warm_up() -> None:
            mirror_copy(folder)
            merge(f"{copy_tree(folder / 'template', Path(fresh(folder)))}/{TABLES}/t", changes[0])

        what = "changes, against a MERGE a file"
        return compare("mirror", what, lambda: mirror_copy(folder), peer, pairs, warm_up=warm_up)


def collapsed_batch(pairs: int) -> BenchResult:
    from deltalake import write_deltalake

    with scratch() as folder:
        changes = changed_lake(folder)
        batch = collapsed(change_files(0, BASE, CHANGES, FILES))
        size = -(-len(batch) // FILES)
        parts = [batch.slice(start, size) for start in range(0, len(batch), size)]
        write_files(parts, folder / "collapsed")
        write_deltalake(str(folder / "rs"), pa.concat_tables(initial_files(0, BASE, FILES)))
        ends: dict[str, tuple[Any, ...]] = {}

        def ours() -> float:
            return mirror_copy(folder, ends)

        def delta() -> float:
            target = f"{copy_tree(folder / 'template', Path(fresh(folder)))}/{TABLES}/t"
            seconds = timed(lambda: merge(target, str(folder / "collapsed")))
            ends["delta"] = summary(target)
            return seconds

        def delta_rs() -> float:
            target = copy_tree(folder / "rs", Path(fresh(folder)))
            seconds = timed(lambda: merge_by_delta_rs(str(target), batch))
            ends["delta-rs"] = summary(str(target))
            return seconds

        assert len(changes) == FILES
        results = [
            compare("mirror", f"changes, against {who} of the collapsed", ours, peer, pairs)
            for who, peer in (("Delta's MERGE", delta), ("delta-rs' merge", delta_rs))
        ]
        assert len(set(ends.values())) == 1, ends
        return join_results("mirror", results)


def clustered(pairs: int) -> BenchResult:
    with scratch() as small, scratch() as large:
        first = 10 * BASE - BASE
        for folder, start in ((small, first), (large, 0)):
            changed_lake(folder, start, first)
        return compare(
            "mirror",
            "changes on a tenfold clustered table, against the small one",
            lambda: mirror_copy(large),
            lambda: mirror_copy(small),
            pairs,
        )


def tables(pairs: int) -> BenchResult:
    with scratch() as folder:
        for template, count in (("template", 200), ("warm", 8)):
            for number in range(count):
                table = rows(pa.array(range(100)).to_numpy(), number)
                write_files([table], zone(folder / template, f"t{number}"))
        one = MirrorOptions(tables_at_once=1)
        first = compare(
            "mirror",
            "200 small tables, against one after the other",
            lambda: mirror_copy(folder),
            lambda: mirror_copy(folder, options=one),
            pairs,
            warm_up=lambda: [mirror_copy(folder, template="warm") for _ in range(2)],
        )
    with scratch() as folder:
        return join_results("mirror", [first, bench_changes.many_tables(folder, pairs, merge)])


def small(pairs: int) -> BenchResult:
    counts = {
        1: "1 change of 2,000,000 rows, against MERGE",
        1000: "1,000 changes of 2,000,000 rows, against MERGE",
    }
    with scratch() as folder:
        found = bench_changes.against_merge(folder, pairs, counts, merge, summary)
    with scratch() as folder:
        plain = bench_changes.against_delta_rs(folder, pairs, merge_by_delta_rs, summary)
        return join_results("mirror", [found, plain])


def plain(pairs: int) -> BenchResult:
    counts = {
        1: "1 change of 2,000,000 rows without deletion vectors, against MERGE",
        1000: "1,000 changes of 2,000,000 rows without deletion vectors, against MERGE",
    }
    with scratch() as folder:
        return bench_changes.against_merge(folder, pairs, counts, merge, summary, vectors=False)


def sparse(pairs: int) -> BenchResult:
    counts = {100_000: "100,000 changes of 2,000,000 rows, against MERGE"}
    with scratch() as folder:
        return bench_changes.against_merge(folder, pairs, counts, merge, summary)


def wide(pairs: int) -> BenchResult:
    results = []
    for vectors, how in ((True, ""), (False, " without deletion vectors")):
        counts = {1000: f"1,000 changes of 5,000,000 rows of 20 columns{how}, against MERGE"}
        with scratch() as folder:
            found = bench_changes.against_merge(
                folder, pairs, counts, merge, summary, known=5_000_000, more=15, vectors=vectors
            )
        results.append(found)
    return join_results("mirror", results)


def large(pairs: int) -> BenchResult:
    counts = {1000: "1,000 changes of 20,000,000 rows, against MERGE"}
    with scratch() as folder:
        rows, warm_ups = 20_000_000, bench_changes.WARM_UPS
        found = bench_changes.against_merge(
            folder, pairs, counts, merge, summary, known=rows, warm_ups=warm_ups
        )
    with scratch() as folder:
        return join_results("mirror", [found, bench_changes.spread(folder, pairs)])


def cycles(_pairs: int) -> BenchResult:
    with scratch() as folder:
        return bench_changes.cycles(folder, summary)


def grown(pairs: int) -> BenchResult:
    with scratch() as folder:
        return bench_changes.grown(folder, pairs)


def bulk(pairs: int) -> BenchResult:
    with scratch() as folder:
        changes = change_files(0, BASE, CHANGES, FILES)
        return bench_changes.bulk(folder, pairs, changes, summary)


def reads(pairs: int) -> BenchResult:
    with scratch() as folder:
        return bench_changes.reads(folder, pairs, summary)


def idle(pairs: int) -> BenchResult:
    with scratch() as folder:
        lake = Lake(folder / "lake")
        template = zone(folder / "lake", "t")
        write_files(initial_files(0, 200, 2), template)
        assert not mirror(lake).failed
        (state,) = load_states(lake.storage).values()
        states = {}
        for number in range(1000):
            name = f"table_{number:04}"
            copy_tree(template, folder / "lake" / ZONE / name)
            states[f"{ZONE}/{name}"] = replace(state, name=name)
        save_states(lake.storage, load_states(lake.storage) | states)

        def refuse() -> Any:
            raise AssertionError("a cycle over idle tables started Spark")

        def ours() -> float:
            from mirrorlake.mirror.engine import Engine

            engine = Engine(Storage(folder / "lake"), refuse)
            seconds = timed(lambda: lines.append(engine.run_cycle()))
            assert len(lines.pop().tables) == 1001
            return seconds

        lines: list[Any] = []
        return compare(
            "mirror",
            "1,000 idle tables, against a listing",
            ours,
            lambda: timed(lambda: list(walk(folder / "lake" / ZONE))),
            5 * pairs,
        )


def memory(_pairs: int) -> BenchResult:
    peaks = []
    for size in (100_000, 1_000_000):  # of each file; one reader per file, with full batches
        with tempfile.TemporaryDirectory() as folder:
            source = zone(Path(folder))
            for number in range(8):
                (table,) = initial_files(number * size, size, 1)
                markers = pa.repeat(pa.scalar(0, pa.int32()), size)
                write_files([table.append_column(MARKER, markers)], source, number + 1)
            peaks.append(run_script(Path(__file__), folder)["peak_mib"])
    small, large = peaks
    what = "the driver's memory, tenfold input"
    return BenchResult("mirror", {}, {what: round(small / large, 2)})


PARTS = {
    "load": load,
    "files": files,
    "collapsed": collapsed_batch,
    "clustered": clustered,
    "small": small,
    "plain": plain,
    "sparse": sparse,
    "wide": wide,
    "large": large,
    "grown": grown,
    "bulk": bulk,
    "reads": reads,
    "cycles": cycles,
    "tables": tables,
    "idle": idle,
    "memory": memory,
}


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary folder; Spark starts before the first measurement."""
    get_spark("batch")
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def fresh(folder: Path) -> str:
    """Return a new path in a folder."""
    return f"{tempfile.mkdtemp(dir=folder)}/new"


def changed_lake(folder: Path, start: int = 0, first: int = 0) -> list[str]:
    """Create a mirrored table with ids from `start` to `first + BASE`, and changes of it.

    The table is mirrored in parts of 2,000,000 rows, so that its files are in the order of the ids.

    Returns:
        The files of the changes; they change ids from `first` on.
    """
    source = zone(folder / "template")
    number = 1
    for begin in range(start, first + BASE, BASE):
        number += len(write_files(initial_files(begin, BASE, FILES), source, number))
        assert not mirror(Lake(folder / "template")).failed
    return write_files(change_files(first, BASE, CHANGES, FILES), source, number)


def mirror(lake: Lake, options: MirrorOptions | None = None) -> Any:
    return lake.mirror(options=options)


def mirror_copy(
    folder: Path,
    ends: dict[str, tuple[Any, ...]] | None = None,
    *,
    template: str = "template",
    options: MirrorOptions | None = None,
) -> float:
    """Return the seconds of one cycle over a copy of the folder's lake."""
    lake = Lake(copy_tree(folder / template, Path(fresh(folder))))
    reports: list[Any] = []
    seconds = timed(lambda: reports.append(mirror(lake, options)))
    assert not reports[0].failed, reports
    assert all(table.backlog_files == 0 for table in reports[0].tables)
    if ends is not None:
        ends["ours"] = summary(lake.storage.path(f"{TABLES}/t"))
    return seconds


def merge(target: str, source: str) -> None:
    """Run Delta's MERGE of files in which each id occurs once."""
    changes = get_spark().read.parquet(source)
    changes.createOrReplaceTempView("changes")
    names = [name for name in changes.columns if name != MARKER]
    columns = ", ".join(names)
    get_spark().sql(
        f"""
        MERGE INTO delta.`{target}` t USING changes s ON t.id = s.id
        WHEN MATCHED AND s.{MARKER} = 2 THEN DELETE
        WHEN MATCHED THEN UPDATE SET {", ".join(f"{name} = s.{name}" for name in names)}
        WHEN NOT MATCHED AND s.{MARKER} <> 2
        THEN INSERT ({columns}) VALUES ({", ".join(f"s.{name}" for name in names)})
        """
    )


def merge_by_delta_rs(target: str, batch: pa.Table) -> None:
    """Run the same MERGE with delta-rs, with the batch in memory."""
    from deltalake import DeltaTable

    values = {name: f"s.{name}" for name in COLUMNS}
    merger = DeltaTable(target).merge(batch, "t.id = s.id", source_alias="s", target_alias="t")
    (
        merger.when_matched_delete(f's."{MARKER}" = 2')
        .when_matched_update(values)
        .when_not_matched_insert(values, f's."{MARKER}" <> 2')
        .execute()
    )


def summary(table: str) -> tuple[Any, ...]:
    """Return figures that two tables with the same rows have in common."""
    rows = get_spark().read.format("delta").load(table)
    columns = ", ".join(COLUMNS)
    found = rows.selectExpr("count(*)", f"bit_xor(xxhash64({columns}))", "sum(quantity)").first()
    assert found is not None
    return tuple(found)


def walk(folder: Path | str) -> Iterator[tuple[str, int, float]]:
    """Return name, size and time of every file below a folder."""
    with os.scandir(folder) as found:
        for item in found:
            if item.is_dir():
                yield from walk(item.path)
            else:
                stat = item.stat()
                yield item.name, stat.st_size, stat.st_mtime


if __name__ == "__main__":
    get_spark("batch")
    assert not Lake(sys.argv[1]).mirror().failed
    print(f'{{"peak_mib": {peak_mib():.1f}}}')
