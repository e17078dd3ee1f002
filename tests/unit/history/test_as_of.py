"""The argument `as_of` of `Lake.sql`: an internal function, because a query starts Spark."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from mirrorlake.errors import UsageError
from mirrorlake.sql import _when

NINE = datetime(2024, 4, 28, 9, 15, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("as_of", "when"),
    [
        (None, None),
        (" ", None),
        (0, 0),
        ("7", 7),
        (" v7", 7),
        ("20240428091500000", NINE),
        ("2024-04-28 09:15", NINE),
        ("2024-04-28T11:15:00+02:00", NINE),
        (NINE.replace(tzinfo=None), NINE),
        (NINE.astimezone(timezone(timedelta(hours=2))), NINE),
    ],
)
def test_a_version_or_a_timestamp_in_utc(as_of: Any, when: Any) -> None:
    assert _when(as_of) == when


@pytest.mark.parametrize("as_of", ["v", "-1", "31.03.2024"])
def test_another_text_is_refused(as_of: str) -> None:
    with pytest.raises(UsageError, match="is not a timestamp"):
        _when(as_of)
