"""Texts as values of the declared types: numbers, moments, days, times, bytes."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_ZONED = r"\d\d:\d\d[0-9:.]*(Z|[+-]\d\d(:?\d\d)?)$"


def converter(kind: pa.DataType, null: str) -> Callable[[Any], pa.Array]:
    """From texts to a type; raises one of `UNFIT`."""
    if pt.is_string(kind):
        return lambda texts: texts

    def convert(texts: pa.Array) -> pa.Array:
        texts = pc.utf8_trim_whitespace(texts)
        # Nothing, quoted or not, is no number and no date.
        empty = pc.or_(pc.equal(texts, ""), pc.equal(texts, null))
        texts = pc.if_else(empty, pa.scalar(None, pa.string()), texts)
        if pt.is_timestamp(kind):
            return _moments(texts).cast(kind)
        if pt.is_time(kind):  # Arrow casts no text to a time
            texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+$", r"\1")
            day = pc.binary_join_element_wise("1970-01-01", texts, "T")
            return day.cast(pa.timestamp("us")).cast(kind)
        if pt.is_binary(kind):
            return pa.array([None if t is None else _bytes(t) for t in texts.to_pylist()], kind)
        if pt.is_integer(kind):
            texts = pc.replace_substring_regex(texts, r"^\+(\d)", r"\1")
        values = texts.cast(kind)
        if pt.is_floating(kind):
            # Infinity has to be written out; a number too large must not become it.
            written = pc.match_substring_regex(texts, "^[+-]?inf", ignore_case=True)
            if pc.any(pc.and_not(pc.is_inf(values), written)).as_py():
                raise pa.ArrowInvalid("the number is too large")
        return values

    return convert


def _moments(texts: pa.Array) -> pa.Array:
    """ISO texts with a zone each: without one they are UTC; digits below a microsecond are cut."""
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    day = pc.match_substring_regex(texts, r"^\d{4}-\d\d-\d\d$")
    texts = pc.if_else(day, pc.binary_join_element_wise(texts, "00:00:00", "T"), texts)
    zoned = pc.match_substring_regex(texts, _ZONED)
    return pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", ""))


def _bytes(text: str) -> bytes:
    if text[:2].lower() == "0x":
        return bytes.fromhex(text[2:])
    return base64.b64decode(text, validate=True)
