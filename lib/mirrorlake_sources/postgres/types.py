"""PostgreSQL's types: what each becomes, how a snapshot reads it, how the stream's text is turned.

Numbers, texts, bytes, days and moments keep their types. All else lands as the text that psql
prints. `docs/sources.md` has the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from mirrorlake.errors import SchemaError

_TYPES = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),  # oid
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
}
_OID, _NUMERIC = 26, 1700
_PLAIN_TEXT = (18, 19, 25, 1042, 1043)  # "char", name, text, char(n), varchar: read as they are
_MOST_DIGITS = 38
_DAY_US = 86_400_000_000
# The ends of what Delta's readers agree on; PostgreSQL's infinity has no other counterpart.
_FIRST, _LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
_MOMENT = re.compile(
    r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?"
)


@dataclass(frozen=True)
class ColumnType:
    """What a column of a type becomes.

    Attributes:
        oid: the type, a domain's base type.
        arrow: the type that is published.
    """

    oid: int
    arrow: pa.DataType

    def selected(self, column: str) -> str:
        """The expression by which a snapshot reads a column, given quoted."""
        if self.oid in (1082, 1114, 1184) and not pa.types.is_string(self.arrow):
            name = {1082: "date", 1114: "timestamp", 1184: "timestamptz"}[self.oid]
            first, last = (_FIRST[:10], _LAST[:10]) if self.oid == 1082 else (_FIRST, _LAST)
            return (
                f"CASE WHEN isfinite({column}) THEN {column} WHEN {column} > '2000-01-01' "
                f"THEN '{last}'::{name} WHEN {column} < '2000-01-01' THEN '{first}'::{name} END"
            )
        if self.oid == _OID and not pa.types.is_string(self.arrow):
            return f"{column}::bigint"
        if pa.types.is_string(self.arrow) and self.oid not in (*_PLAIN_TEXT, _NUMERIC):
            # `concat` prints as psql does; a cast to text would pad an inet and trim a char.
            return f"CASE WHEN {column} IS DISTINCT FROM NULL THEN concat({column}) END"
        if pa.types.is_string(self.arrow) and self.oid in (_NUMERIC, 18):
            return f"{column}::text"
        return column

    def turned(self, values: pa.Array, column: str) -> pa.Array:
        """What a snapshot has read, in the type that is published.

        Raises:
            SchemaError: a value has no counterpart; names the column.
        """
        if values.type == self.arrow:
            return values
        if pa.types.is_string(values.type):
            return self.parsed(values, column)
        return self._converted(values, column, lambda found: found.cast(self.arrow))

    def parsed(self, texts: pa.Array, column: str) -> pa.Array:
        """Values as the server prints them, in the type that is published; raises as `turned`."""
        return self._converted(
            texts, column, lambda found: self._from_text(found.cast(pa.string()))
        )

    def _converted(
        self, values: pa.Array, column: str, convert: Callable[[pa.Array], pa.Array]
    ) -> pa.Array:
        try:
            return convert(values)
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise SchemaError(
                f"A value of {column!r} has no counterpart in {self.arrow}: {error}.",
                column=column,
                hint=f"land the column as text: --text TABLE.{column}, then --reseed the table.",
            ) from error

    def _from_text(self, texts: pa.Array) -> pa.Array:
        arrow = self.arrow
        if pa.types.is_string(arrow):
            return texts
        if pa.types.is_boolean(arrow):
            return pc.equal(texts, "t")
        if pa.types.is_binary(arrow):
            return pa.array(
                [None if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()],
                arrow,
            )
        if pa.types.is_date(arrow) or pa.types.is_timestamp(arrow):
            try:
                return texts.cast(arrow)
            except pa.ArrowInvalid:  # infinity, years before 1 and after 9999
                return self._from_moments(texts)
        return texts.cast(arrow)

    def _from_moments(self, texts: pa.Array) -> pa.Array:
        days = pa.types.is_date(self.arrow)
        found = [None if text is None else _microseconds(text) for text in texts.to_pylist()]
        if days:
            return pa.array(
                [None if us is None else us // _DAY_US for us in found], pa.int32()
            ).cast(self.arrow)
        return pa.array(found, pa.int64()).cast(self.arrow)


def column_type(oid: int, typmod: int, *, as_text: bool = False) -> ColumnType:
    """What a column becomes.

    Args:
        oid: its type; of a domain the base type.
        typmod: the type's modifier; -1 for none.
        as_text: land it as the text that psql prints.
    """
    if as_text:
        return ColumnType(oid, pa.string())
    if oid == _NUMERIC and typmod >= 4:
        precision = (typmod - 4) >> 16 & 0xFFFF
        scale = (typmod - 4 & 0x7FF ^ 1024) - 1024  # 11 bits with a sign
        if precision <= _MOST_DIGITS and 0 <= scale <= precision:
            return ColumnType(oid, pa.decimal128(precision, scale))
    return ColumnType(oid, _TYPES.get(oid, pa.string()))


def _microseconds(text: str) -> int:
    """Microseconds since 1970 of a day or moment as PostgreSQL prints it in UTC."""
    if text in ("infinity", "-infinity"):
        text = _LAST if text == "infinity" else _FIRST
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no day or moment")
    year = 1 - int(match[1]) if match[8] else int(match[1])
    days = _days(year, int(match[2]), int(match[3]))
    hours, minutes, seconds = (int(part or 0) for part in match.group(4, 5, 6))
    fraction = int((match[7] or "").ljust(6, "0"))
    return days * _DAY_US + ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + fraction


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 in the proleptic Gregorian calendar, for any year."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
