"""Test how the key of a row is given, and what the status of row tracking shows."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlake import names
from mirrorlake.errors import UsageError
from mirrorlake.rows import row_history
from mirrorlake.rows.tracking import Tracking


@pytest.mark.parametrize(
    ("text", "keys", "wanted"),
    [
        ("", ("id",), None),
        ("  ", (), None),
        ("7", ("id",), {"id": "7"}),
        ('{"id": 7, "day": "2024-05-01"}', (), {"id": 7, "day": "2024-05-01"}),
    ],
)
def test_a_key_is_a_value_or_json(text: str, keys: tuple[str, ...], wanted: Any) -> None:
    assert row_history.parse_key(text, keys, "t") == wanted


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ("{id: 7}", ("id",), "not valid JSON"),
        ("{}", ("id",), "has no column"),
        ("7", (), "declares no keys"),
        ("7", ("a", "b"), "a, b"),
    ],
)
def test_what_is_no_key_is_refused(text: str, keys: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        row_history.parse_key(text, keys, "t")


@pytest.mark.parametrize("enabled", [True, False])
def test_ids_are_kept_only_while_rows_are_tracked(enabled: bool) -> None:
    status = Tracking("t", 7, enabled, True, 4, 6, (), 0, 0)
    assert ("ids kept since version 6" in repr(status)) is enabled
    assert (("ids kept since", "version 6") in status.shown().rows) is enabled
    assert ("numbered since", "version 4") in status.shown().rows


def test_keys_are_spelled_as_the_columns() -> None:
    """An internal function, because the report itself starts Spark."""
    assert names.spelled(("Day", "ID", "gone"), ["id", "n", "day"]) == ("day", "id")
