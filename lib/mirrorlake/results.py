"""Result types shared by the public API: tables of values, findings, outcomes of operations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from functools import cache, wraps
from html import escape
from typing import Any, ClassVar, TypeVar, cast

_NUMBER = "text-align:right;font-variant-numeric:tabular-nums"
_TEXT = "text-align:left"
_Entry = TypeVar("_Entry")
_Plot = TypeVar("_Plot", bound=Callable[..., Any])
_log = logging.getLogger(__name__)


class Count(int):
    """A count, shown with thousands separators; other integers, such as ids and years, are not.

    Example:
        >>> TextTable(("rows",), ((Count(17656),),))
          rows
        17,656
    """


@dataclass(frozen=True)
class TextTable:
    """A small table of values, as text and as HTML.

    Attributes:
        columns: the names of the columns.
        rows: the values of each row, in the columns' order.
        more: whether there are more rows than these.
        numeric: positions of columns that hold numbers, even if all values are NULL.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool = False
    numeric: frozenset[int] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, items: Iterable[object], columns: tuple[str, ...]) -> TextTable:
        """Return a table with one row per object: the values of these attributes."""
        return cls(columns, tuple(tuple(getattr(i, name) for name in columns) for i in items))

    def document(self) -> dict[str, Any]:
        """Return columns and rows as `--json` prints them."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"columns": list(self.columns), "rows": rows}

    def without(self, *columns: str) -> TextTable:
        """Return the table without these columns."""
        return self.select(*(name for name in self.columns if name not in columns))

    def select(self, *columns: str) -> TextTable:
        """Return the table with these columns only, in this order."""
        places = [self.columns.index(name) for name in columns]
        rows = tuple(tuple(row[place] for place in places) for row in self.rows)
        return TextTable(columns, rows, self.more)

    def __repr__(self) -> str:
        lines = [list(self.columns), *([_text(value) for value in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        right = [self._is_numeric(i) for i in range(len(widths))]
        texts = [
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(line, widths, right, strict=True)
            ).rstrip()
            for line in lines
        ]
        return "\n".join(texts + ["… and more rows"] * self.more)

    def _repr_html_(self) -> str:
        """Return the rows as HTML: numbers are right-aligned, every value is escaped."""
        styles = [_NUMBER if self._is_numeric(i) else _TEXT for i in range(len(self.columns))]
        head = _html_row("th", self.columns, styles)
        body = "".join(_html_row("td", map(_text, row), styles) for row in self.rows)
        more = "<p>… and more rows</p>" if self.more else ""
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{more}"

    def _is_numeric(self, index: int) -> bool:
        values = [row[index] for row in self.rows if row[index] not in (None, "")]
        if not values:
            return index in self.numeric
        return all(isinstance(v, (int, float, Decimal)) for v in values)


class Result:
    """The result of a method: one line as text, and a table in a notebook."""

    def shown(self) -> TextTable:
        """Return the result as a table."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.shown()._repr_html_()


def optional_figure(plot: _Plot) -> _Plot:
    """Make a `plot` method return None, after one warning, if matplotlib is not installed.

    So a notebook continues without its figures.
    """

    @wraps(plot)
    def draw(*args: Any, **options: Any) -> Any:
        try:
            return plot(*args, **options)
        except ModuleNotFoundError as error:
            _warn_once(f"Figures are left out. {error}")
            return None

    return cast(_Plot, draw)


@cache
def _warn_once(text: str) -> None:
    _log.warning(text)


class Entries(tuple[_Entry, ...], Result):
    """A tuple of results that a notebook shows as one table, or as a note if it is empty.

    Args:
        entries: the results.
        columns: the names of the table's columns.
        row: returns the values of one entry.
        empty: the note for no entries.
    """

    def __new__(
        cls,
        entries: Iterable[_Entry],
        columns: tuple[str, ...],
        row: Callable[[_Entry], tuple[Any, ...]],
        empty: str,
    ) -> Entries[_Entry]:
        """Build the tuple, and its table at once: tuples do not change."""
        made = super().__new__(cls, entries)
        rows = tuple(map(row, made))
        made._shown = TextTable(columns, rows) if rows else note(empty)
        return made

    _shown: TextTable

    def shown(self) -> TextTable:
        """Return one row per entry."""
        return self._shown

    def __repr__(self) -> str:
        return repr(self._shown)


def note(text: str) -> TextTable:
    """Return a table with one sentence, for a result without rows."""
    return TextTable(("note",), ((text,),))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1.

    Example:
        >>> counted(1, "file"), counted(2000, "file")
        ('1 file', '2,000 files')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _html_row(tag: str, cells: Iterable[str], styles: list[str]) -> str:
    inner = "".join(
        f'<{tag} style="{style}">{escape(cell)}</{tag}>'
        for cell, style in zip(cells, styles, strict=True)
    )
    return f"<tr>{inner}</tr>"


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, Count):
        return f"{value:,}"
    if isinstance(value, Decimal):
        return decimal_text(value)
    return float_text(value) if isinstance(value, float) else str(value)


def float_text(value: float, separator: str = "") -> str:
    """Return a double with ten digits; from 10^10 to 2^53, as the nearest whole number.

    Args:
        value: the double.
        separator: the thousands separator, `,` or `_`; by default none.

    Example:
        >>> float_text(0.1 + 0.2), float_text(12345678901.0), float_text(1e300)
        ('0.3', '12345678901', '1e+300')
    """
    # Floating-point sums differ in the last digits from run to run.
    text = f"{value:{separator}.10g}"
    return f"{value:{separator}.0f}" if "e+" in text and abs(value) <= 2**53 else text


def decimal_text(value: Decimal) -> str:
    """Return a decimal without the trailing zeros of its type, but with two places if it has any.

    Example:
        >>> decimal_text(Decimal("957539.80000000")), decimal_text(Decimal("0.12300"))
        ('957539.80', '0.123')
    """
    whole, point, places = f"{value:f}".partition(".")
    return f"{whole}{point}{places[:2]}{places[2:].rstrip('0')}"


def size_text(size: float) -> str:
    """Return a number of bytes with its unit.

    Example:
        >>> size_text(0), size_text(1536), size_text(3 * 2**30)
        ('0 B', '1.5 KiB', '3.0 GiB')
    """
    if abs(size) < 52:  # it would be shown as 0.0 KiB
        return f"{size:.0f} B"
    units = ("KiB", "MiB", "GiB")
    power = sum(abs(size) >= 1000 * 1024**n for n in (1, 2))
    return f"{size / 1024 ** (power + 1):,.1f} {units[power]}"


def moment_text(moment: str) -> str:
    """Return an ISO-8601 timestamp to the second, without its time zone.

    Example:
        >>> moment_text("2026-03-01T02:00:05.123+00:00"), moment_text("")
        ('2026-03-01 02:00:05', '')
    """
    return moment[:19].replace("T", " ")


@dataclass(frozen=True)
class Outcome:
    """The outcome of an operation on one table.

    Attributes:
        verb: the operation, such as `pause`.
        table: the table's name.
        effect: the change, in words.
        applied: whether the change was made; False after a dry run.
        files: the affected files, in order.
    """

    verb: str
    table: str
    effect: str
    applied: bool
    files: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        return asdict(self)

    def __repr__(self) -> str:
        done = "" if self.applied else " Nothing was changed: a dry run."
        return f"{self.verb} {self.table}: {self.effect}.{done}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding of a check. Some checks add fields of their own.

    Attributes:
        rule: the rule's id.
        table: the table, or a folder whose name no table can have; None for the landing zone.
        file: the file's name.
        row: the first affected row of the file, counted from 1.
        column: the column's name.
        message: the finding, as a sentence.
        fix: the action that solves it, in the imperative.

    Example:
        >>> Finding(rule="key-null", message="Key 'id' is NULL.", fix="Fill it in.", row=3).row
        3
    """

    rule: str
    table: str | None = None
    file: str | None = None
    row: int | None = None
    column: str | None = None
    message: str
    fix: str

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as `--json` prints it."""
        names = ("rule", "table", "file", "row", "column", "message", "fix")
        return {name: getattr(self, name) for name in names}


class Findings(Result):
    """The result of a check: one row, and one entry of the document, per finding.

    Attributes:
        findings: the findings, in order.
        fields: the fields of a finding that the table shows.
    """

    findings: tuple[Finding, ...]
    fields: ClassVar[tuple[str, ...]] = ("rule", "table", "message", "fix")

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        return {"findings": [finding.as_dict() for finding in self.findings]}

    def shown(self) -> TextTable:
        """Return one row per finding."""
        return TextTable.of(self.findings, self.fields)
