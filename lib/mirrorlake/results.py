"""What verbs hand back: results, findings, and rows to look at, as text and as HTML alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from html import escape
from typing import Any, ClassVar

_NUMBER = "text-align:right;font-variant-numeric:tabular-nums"
_TEXT = "text-align:left"


class Count(int):
    """How many there are of something: shown with separators, as ids and years must not be.

    Example:
        >>> TextTable(("rows",), ((Count(17656),),))
          rows
        17,656
    """


@dataclass(frozen=True)
class TextTable:
    """Rows to look at.

    Attributes:
        columns: the names.
        rows: the values, in the columns' order.
        more: whether rows were left out.
        numeric: places of columns that hold numbers, whether or not a row has one.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool = False
    numeric: frozenset[int] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, items: Iterable[object], columns: tuple[str, ...]) -> TextTable:
        """One row for each object, with these attributes of it."""
        return cls(columns, tuple(tuple(getattr(i, name) for name in columns) for i in items))

    def document(self) -> dict[str, Any]:
        """Columns and rows, as `--json` prints them."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"columns": list(self.columns), "rows": rows}

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
        """The rows as HTML, numbers to the right, every value escaped."""
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
    """What a verb hands back: one line as text, and in a notebook a table with the same facts."""

    def shown(self) -> TextTable:
        """The facts as a table."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.shown()._repr_html_()


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
    # Sums of parts differ in the last digits from run to run.
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def size_text(size: float) -> str:
    """Bytes as people read them.

    Example:
        >>> size_text(1536), size_text(3 * 2**30)
        ('1.5 KiB', '3.0 GiB')
    """
    units = ("KiB", "MiB", "GiB")
    power = sum(abs(size) >= 1000 * 1024**n for n in (1, 2))
    return f"{size / 1024 ** (power + 1):,.1f} {units[power]}"


def moment_text(moment: str) -> str:
    """A moment in ISO-8601 as people read it, to the second and without its zone.

    Example:
        >>> moment_text("2026-03-01T02:00:05.123+00:00"), moment_text("")
        ('2026-03-01 02:00:05', '')
    """
    return moment[:19].replace("T", " ")


@dataclass(frozen=True)
class Outcome:
    """What a call did, or would do.

    Attributes:
        verb: the call, such as `pause`.
        table: the table's name.
        effect: what it changes, in words.
        applied: whether it is done; False after a dry run.
        files: the files concerned, in order, where there are any.
    """

    verb: str
    table: str
    effect: str
    applied: bool
    files: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return asdict(self)

    def __repr__(self) -> str:
        done = "" if self.applied else " Nothing was changed: a dry run."
        return f"{self.verb} {self.table}: {self.effect}.{done}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found. Checks that know more add fields of their own.

    Attributes:
        rule: the rule's id.
        table: the table, or its folder where it can't be one; None for the zone itself.
        file: the file's name.
        row: the row in it, counted from 1; where several are alike, the first.
        column: the column's name.
        message: what was found, as a sentence.
        fix: what to do, in the imperative.

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
        """The finding as the commands' `--json` shows it."""
        names = ("rule", "table", "file", "row", "column", "message", "fix")
        return {name: getattr(self, name) for name in names}


class Findings(Result):
    """What a check hands back: one row and one entry of the document for each finding.

    Attributes:
        findings: what was found, in order.
        fields: which of a finding's fields people see.
    """

    findings: tuple[Finding, ...]
    fields: ClassVar[tuple[str, ...]] = ("rule", "table", "message", "fix")

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {"findings": [finding.as_dict() for finding in self.findings]}

    def shown(self) -> TextTable:
        """One row for each finding."""
        return TextTable.of(self.findings, self.fields)
