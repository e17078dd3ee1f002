"""Parsing keys on the command line: names and values may contain equals signs."""

from __future__ import annotations

import pytest

from mirrorlake.errors import UsageError
from mirrorlake.mirror import forget


def test_either_part_may_have_equals_signs() -> None:
    columns = ["a", "a=b", "it's `odd`"]
    texts = ["A=x=y", "a=b=z", "it's `odd`="]
    assert forget.parse_key(texts[:1], columns) == {"a": "x=y"}
    assert forget.parse_key(texts, columns) == {"a": "x=y", "a=b": "z", "it's `odd`": ""}


@pytest.mark.parametrize("texts", [["b=1"], ["a"], ["a=1", "A=2"]])
def test_anything_else_is_wrong_use(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="COLUMN=VALUE"):
        forget.parse_key(texts, ["a"])
