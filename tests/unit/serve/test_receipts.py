"""Receipts of renames recognise a retry after a lost response, not a rename of a missing file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirrorlake_serve import files


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "state" / "of a server" / "renames.jsonl"


def renamed(receipts: files.Receipts, source: str, target: str, uploads: int = 1) -> None:
    for _ in range(uploads):
        receipts.uploaded(source)
    receipts.renaming(source, target)


def known(receipts: files.Receipts, *pairs: str) -> list[bool]:
    return [receipts.is_retry(pair[0], pair[1]) for pair in pairs]


def test_the_same_rename_again_is_a_retry(journal: Path) -> None:
    receipts = files.Receipts(journal)
    assert not journal.exists()
    renamed(receipts, "a", "b")
    assert known(receipts, "ab", "ac", "ba") == [True, False, False]
    receipts.renaming("x", "y")  # an upload that an earlier process has seen
    assert known(receipts, "ab", "xy") == [True, True]


def test_an_upload_a_second_rename_and_a_refusal_end_it(journal: Path) -> None:
    receipts = files.Receipts(journal)
    for source in "abc":
        renamed(receipts, source, "t")
    receipts.uploaded("a")
    receipts.failed("b")
    receipts.renaming("c", "u")
    for again in (receipts, files.Receipts(journal)):
        assert known(again, "at", "bt", "ct", "cu") == [False, False, False, True]


def test_a_source_that_several_uploads_share_gives_none(journal: Path) -> None:
    receipts = files.Receipts(journal)
    renamed(receipts, "a", "t", uploads=2)
    assert not receipts.is_retry("a", "t")
    renamed(receipts, "a", "t")  # counted from its last rename on
    assert receipts.is_retry("a", "t")


def test_what_concerns_nobody_writes_nothing(journal: Path) -> None:
    receipts = files.Receipts(journal)
    receipts.uploaded("a")
    receipts.failed("a")
    receipts.failed("b")
    assert not journal.exists()


def test_another_process_reads_the_journal_whatever_is_in_it(journal: Path) -> None:
    renamed(files.Receipts(journal), "a", "b")
    with journal.open("a", encoding="utf-8") as lines:
        lines.write('nonsense\n[1]\n{"source": "x"}\n{"source": [], "target": "t"}\n')
        lines.write(json.dumps({"source": "c", "target": "d"}) + "\n")
        lines.write('{"source": "e", "target": "f"}')  # cut off: it was never answered
    receipts = files.Receipts(journal)
    assert known(receipts, "ab", "cd", "ef") == [True, True, False]


def test_the_oldest_are_forgotten(journal: Path) -> None:
    receipts = files.Receipts(journal, most=3)
    for source in "abcd":
        renamed(receipts, source, "t")
    assert known(receipts, "at", "bt", "ct", "dt") == [False, True, True, True]
    renamed(receipts, "b", "t")  # again: the newest now
    renamed(receipts, "e", "t")
    assert known(receipts, "bt", "ct", "dt", "et") == [True, False, True, True]


def test_uploads_that_are_never_renamed_are_forgotten(journal: Path) -> None:
    receipts = files.Receipts(journal, most=2)
    for source in "aabc":
        receipts.uploaded(source)
    receipts.uploaded("d")  # more than are remembered: all are forgotten
    receipts.renaming("a", "t")
    assert receipts.is_retry("a", "t")
    receipts = files.Receipts(journal, most=2)
    for source in "aab":
        receipts.uploaded(source)
    receipts.uploaded("b")
    receipts.renaming("a", "u")
    assert not receipts.is_retry("a", "u")


@pytest.mark.parametrize(("lines", "kept"), [(6, 6), (7, 3)])
def test_a_journal_that_is_mostly_old_is_written_again(
    lines: int, kept: int, journal: Path
) -> None:
    receipts = files.Receipts(journal, most=3)
    for number in range(lines):
        receipts.renaming(str(number), "t")
    again = files.Receipts(journal, most=3)
    assert len(journal.read_text(encoding="utf-8").splitlines()) == kept
    last = [str(number) for number in range(lines - 3, lines)]
    assert [again.is_retry(name, "t") for name in ("0", *last)] == [False, True, True, True]
    assert [path.name for path in journal.parent.iterdir()] == [journal.name]
    assert [files.Receipts(journal, most=3).is_retry(name, "t") for name in last] == [True] * 3


def test_it_remembers_ten_thousand(journal: Path) -> None:
    journal.parent.mkdir(parents=True)
    lines = (json.dumps({"source": str(n), "target": "t"}) + "\n" for n in range(10_001))
    journal.write_text("".join(lines), encoding="utf-8")
    assert [files.Receipts(journal).is_retry(str(n), "t") for n in (0, 1, 10_000)] == [
        False,
        True,
        True,
    ]
