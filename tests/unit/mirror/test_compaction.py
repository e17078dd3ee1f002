"""The choice of files that the mirror compacts after a commit."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.mirror import compaction

MIB, LIMIT = 2**20, 8 * 2**20
File = dict[str, Any]


def file(size: int, deleted: int = 0, records: int = 1_000_000) -> File:
    vector = {"deletionVector": {"cardinality": deleted}} if deleted else {}
    return {"size": size, "records": records, **vector}


def share(found: File) -> float:
    deleted = found.get("deletionVector", {}).get("cardinality", 0)
    return float(deleted / (deleted + found["records"])) if found["records"] >= 0 else 0.0


def split(files: Sequence[File], *, merges: bool = True) -> tuple[list[File], list[File]]:
    """Return the files that OPTIMIZE rewrites with these limits, and the others."""
    limits = compaction.limit_compaction(files, merges=merges)
    bins: list[list[File]] = [[]]
    for found in sorted(files, key=lambda one: one["size"]) if limits else ():
        unknown = found["records"] < 0 and "deletionVector" in found
        if found["size"] >= limits.below and share(found) <= limits.deleted and not unknown:
            continue
        if sum(f["size"] for f in bins[-1]) + found["size"] > limits.merged:
            bins.append([])
        bins[-1].append(found)
    rewritten = [found for bin_ in bins if len(bin_) > 1 for found in bin_]
    numbers = {id(found) for found in rewritten}
    left = [found for found in files if id(found) not in numbers]
    return [found for found in files if id(found) in numbers], left


def merged(rewritten: Sequence[File]) -> File:
    """Return the file that replaces these: deleted rows take as many bytes as others."""
    size = sum(int(f["size"] * (1 - share(f))) for f in rewritten)
    return file(size, records=sum(f["records"] for f in rewritten))


def test_small_files_are_merged_without_the_large_ones() -> None:
    large = [file(13 * MIB), file(13 * MIB)]
    small = [file(28_000 + number) for number in range(49)]
    assert split(large + small) == (small, large)
    older = [file(2 * MIB)]  # not more than twice the small ones together
    assert split(large + small + older) == (small + older, large)
    older = [file(3 * MIB)]
    assert split(large + small + older) == (small, large + older)
    assert split(large + small, merges=False) == ([], large + small)


def test_files_below_a_mebibyte_are_always_merged() -> None:
    files = [file(MIB), file(1_000)]
    assert split(files) == (files, [])
    assert split([file(MIB)]) == ([], [file(MIB)])
    assert split([]) == ([], [])


def test_the_files_with_most_deleted_rows_are_rewritten_first() -> None:
    worst, bad, good = file(7 * MIB, 500_000), file(7 * MIB, 400_000), file(7 * MIB, 100_000)
    new = file(30_000, records=5)
    assert split([good, bad, worst, new], merges=False) == ([worst, new], [good, bad])
    small = file(LIMIT // 4, 400_000)
    assert split([good, small, file(LIMIT // 4, 390_000)], merges=False)[1] == [good]


def test_deleted_rows_are_too_many_by_their_share_and_never_if_they_are_few() -> None:
    new = file(1_000, records=5)

    def is_due(records: int, deleted: int) -> bool:
        return bool(split([file(2 * MIB, deleted, records), new], merges=False)[0])

    assert not is_due(80_000, 20_000)
    assert is_due(80_000, 20_010)
    assert not is_due(1, 9_000)


def test_a_single_file_is_rewritten_together_with_the_smallest_other_one() -> None:
    worst, good, better = file(20 * MIB, 900_000), file(9 * MIB), file(10 * MIB)
    assert split([worst, better, good], merges=False) == ([worst, good], [better])
    assert split([worst], merges=False) == ([], [worst])  # OPTIMIZE does not rewrite it


def test_small_files_wait_while_a_large_file_is_rewritten() -> None:
    worst = file(13 * MIB, 500_000)
    small = [file(28_000 + number, records=1_000) for number in range(49)]
    assert split([worst, *small]) == ([worst, small[0]], small[1:])
    limits = compaction.limit_compaction([worst, *small], merges=True)
    assert limits is not None
    assert not limits.complete
    fits = file(7 * MIB, 500_000)
    assert split([fits, *small[:20]]) == ([fits, *small[:20]], [])
    worst = file(MIB // 2, 20_000, 20_000)  # is itself one of the small files
    others = [file(MIB * 6 // 10, 5_000, 20_000) for _ in range(16)]
    assert worst in split([worst, *others])[0]
    assert len(split([worst, *others])[0]) > 10


def test_files_of_any_size_are_rewritten() -> None:
    files = [file(30_000, records=1), file(900 * MIB, 700_000), file(500 * MIB)]
    assert split(files, merges=False) == (files[:2], files[2:])


def test_no_limit_applies_if_far_too_many_rows_are_deleted() -> None:
    files = [file(100 * MIB, 800_000) for _ in range(4)]
    assert split(files, merges=False) == (files, [])


def test_files_without_a_number_of_rows_do_not_prevent_a_compaction() -> None:
    unknown = file(30 * MIB, 900_000, records=-1)
    good, bad, new = file(7 * MIB), file(7 * MIB, 900_000), file(30_000)
    assert split([unknown, good, bad, new], merges=False) == ([unknown, bad, new], [good])


def test_the_limit_grows_with_the_table_and_with_its_files() -> None:
    new = [file(1_000) for _ in range(5)]
    small = [*new, file(9 * MIB), file(9 * MIB)]
    assert split([*small, file(500 * MIB)])[0] == new
    assert split([*small, file(600 * MIB)])[0] == small
    files = [file(5 * MIB + number) for number in range(64)]
    old, left = split(files)
    assert old == files[:8]
    limits = compaction.limit_compaction(files, merges=True)
    assert limits is not None
    assert not limits.complete  # the next commit is followed by the next compaction
    for _ in range(20):
        old, left = split([*left, *([merged(old)] if old else [])])
    assert len(left) <= 16


def test_a_few_large_files_are_not_merged_after_a_small_file() -> None:
    files = [file(size) for size in (28_000, 6 * MIB, 5 * MIB, 13 * MIB, 13 * MIB)]
    assert split(files)[0] == []


@given(st.lists(st.integers(1_000, 3 * MIB), min_size=1, max_size=400), st.integers(2, 60))
def test_bytes_are_rewritten_few_times_and_files_stay_few(sizes: list[int], every: int) -> None:
    files: list[File] = []
    rewritten = 0
    for number, size in enumerate(sizes, 1):
        files.append(file(size))
        if number % every == 0:
            old, files = split(files)
            assert len(old) != 1
            largest = max((f["size"] for f in old), default=0)
            eighth = sorted(f["size"] for f in [*old, *files])[: (len(old) + len(files)) // 8]
            most = max(LIMIT, sum(sizes) / 32, sum(eighth))
            assert sum(f["size"] for f in old if f["size"] < largest) <= most
            rewritten += sum(f["size"] for f in old)
            if old:
                files.append(merged(old))
    total = sum(sizes)
    # A file grows by half each time, or it has less than a mebibyte.
    assert rewritten <= 12 * total + MIB * len(sizes) / every
    assert len(files) <= 2 * every + total / (LIMIT / 4) + 12


def test_steps_stay_small_while_all_rows_of_a_table_change() -> None:
    """1,000 commits change 1,000 rows each of a table of 2,000,000 rows in two files."""
    random = Random(1)
    files = [file(13 * MIB), file(13 * MIB)]
    steps = []
    for number in range(1, 1_001):
        live = sum(f["records"] for f in files)
        for found in files:
            gone = int(1_000 * found["records"] / live * random.uniform(0.97, 1.03))
            found["records"] -= gone
            deleted = gone + found.get("deletionVector", {}).get("cardinality", 0)
            found["deletionVector"] = {"cardinality": deleted}
        files.append(file(28_000 + number % 7, records=1_000))
        old, files = split(files, merges=number % 50 == 0)
        if old:
            files.append(merged(old))
            steps.append(sum(f["size"] for f in old))
    assert max(steps) < 14 * MIB  # the first of the two files, and a small one
    assert sum(steps) < 120 * MIB  # instead of 20 times the whole table
    assert len(files) < 10
    deleted = sum(f.get("deletionVector", {}).get("cardinality", 0) for f in files)
    assert deleted < 0.21 * (deleted + sum(f["records"] for f in files))


@given(st.lists(st.tuples(st.integers(MIB, 40 * MIB), st.integers(0, 400_000)), max_size=40))
def test_repeated_compactions_leave_few_deleted_rows(files: list[tuple[int, int]]) -> None:
    left = [file(size, deleted, 600_000) for size, deleted in files]
    for _ in range(200):
        left.append(file(1_000, records=1))  # the next commit
        old, left = split(left, merges=False)
        if old:
            left.append(merged(old))
    deleted = sum(f.get("deletionVector", {}).get("cardinality", 0) for f in left)
    assert deleted <= max(10_000, 0.2 * (deleted + sum(f["records"] for f in left)))


def test_a_file_without_any_row_is_rewritten() -> None:
    files = [file(5 * MIB, 1_000_000, records=0), file(1_000, records=1)]
    limits = compaction.limit_compaction(files, merges=False)
    assert limits is not None
    assert 0.99 < limits.deleted < 1  # the share must be larger, and Delta accepts no more than 1
