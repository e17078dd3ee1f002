"""Test descriptions of changed rows in words."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from mirrorlake.feed import changes

MOMENT = "2024-05-01 10:00:00.125"


def change(kind: str, version: int, **values: Any) -> dict[str, Any]:
    marks = {"_change_type": kind, "_commit_version": version, "_commit_timestamp": MOMENT}
    return values | marks


def test_an_update_tells_only_what_it_changed() -> None:
    old = change("update_preimage", 3, id=1, n=4, text="a")
    new = change("update_postimage", 3, id=1, n=None, text="a")
    told = changes.describe_changes(
        [change("insert", 1, id=1, n=4, text="a"), old, new], keys=["id"]
    )
    assert told.rows == (
        (1, "2024-05-01 10:00:00", "insert", "id 1: n 4, text a"),
        (3, "2024-05-01 10:00:00", "update", "id 1: n 4 → NULL"),
    )


def test_several_updates_of_one_key_in_a_version_are_told_whole() -> None:
    rows = [change(kind, 2, id=1, n=n) for kind in ("update_preimage", "update_postimage")
            for n in (4, 5)]  # fmt: skip
    assert [row[2] for row in changes.describe_changes(rows, keys=["id"]).rows] == [
        *["update_preimage"] * 2,
        *["update_postimage"] * 2,
    ]


def test_a_changed_key_is_told() -> None:
    old, new = (change(f"update_{when}image", 2, id=n) for n, when in ((1, "pre"), (9, "post")))
    assert changes.describe_changes([old, new], keys=["id"]).rows[0][3] == "id 9: id 1 → 9"


def test_columns_with_an_underscore_are_told_and_those_of_the_feed_are_not() -> None:
    old, new = (change(f"update_{when}image", 2, id=1, _state=when) for when in ("pre", "post"))
    told = changes.describe_changes([old, new], keys=["id"])
    assert told.rows[0][3] == "id 1: _state pre → post"


def test_many_columns_and_long_texts_are_cut() -> None:
    wide = change("insert", 1, **{f"c{n}": "x" * 100 for n in range(500)})
    (line,) = changes.describe_changes([wide]).rows
    assert line[3].endswith("and 492 more columns")
    assert len(line[3]) < 500


def test_nothing_to_tell() -> None:
    same = [change(kind, 1, id=1) for kind in ("update_preimage", "update_postimage")]
    assert changes.describe_changes(same, keys=["id"]).rows[0][3] == "id 1: unchanged"
    assert changes.describe_changes([]).rows == ()


@pytest.mark.parametrize(
    ("value", "text"), [(None, "NULL"), (1.5, "1.5"), ("x" * 41, "x" * 39 + "…"), ("", "")]
)
def test_short(value: Any, text: str) -> None:
    assert changes.short(value) == text


def test_moments_are_told_to_the_second() -> None:
    for moment, text in ((datetime(2024, 5, 1, 10, 0, 0, 999), "2024-05-01 10:00:00"), (None, "")):
        (line,) = changes.describe_changes(
            [change("insert", 1, id=1) | {"_commit_timestamp": moment}]
        ).rows
        assert line[1] == text
