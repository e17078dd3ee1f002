"""What the linter found: one finding a place, and all of them as a report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mirrorlake.lint.rule import Severity
from mirrorlake.lint.rules import BY_ID
from mirrorlake.text_table import TextTable, html_table


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and where.

    Attributes:
        rule: the rule's id, as in `docs/lint.md`.
        table: the table, or its folder where it can't be one; None for the zone itself.
        file: the file's name.
        row: the row in it, counted from 1; where several are alike, the first.
        column: the column's name.
        fix: what to do, in the imperative.
    """

    rule: str
    severity: str
    table: str | None
    file: str | None
    row: int | None
    column: str | None
    message: str
    fix: str


def finding(
    rule: str,
    message: str,
    *,
    table: str | None = None,
    file: str | None = None,
    row: int | None = None,
    column: str | None = None,
    fix: str = "",
) -> Finding:
    """A finding of a rule; the rule's own fix unless there is a better one."""
    texts = [None if t is None else _utf8(t) for t in (table, file, column)]
    known = BY_ID[rule]
    return Finding(
        rule,
        known.severity.value,
        texts[0],
        texts[1],
        row,
        texts[2],
        _utf8(message),
        _utf8(fix) or known.fix,
    )


def _utf8(text: str) -> str:
    """A name on disk need not be UTF-8; as text of a document it has to be."""
    return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True)
class LintReport:
    """All findings, table by table.

    Attributes:
        tables: how many tables were looked at.
        files: how many data files were read.
    """

    findings: tuple[Finding, ...]
    tables: int
    files: int

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What the mirror stops at, or never sees."""
        return tuple(f for f in self.findings if f.severity == Severity.ERROR.value)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What works, but hardly as it is meant."""
        return tuple(f for f in self.findings if f.severity == Severity.WARNING.value)

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {"findings": [asdict(found) for found in self.findings]}

    def shown(self) -> TextTable:
        """One row a finding."""
        columns = ("severity", "rule", "table", "file", "row", "column", "message", "fix")
        return TextTable(
            columns, tuple(tuple(getattr(f, c) for c in columns) for f in self.findings)
        )

    def _repr_html_(self) -> str:
        return html_table(self.shown())

    def __repr__(self) -> str:
        parts = (
            (len(self.errors), "error"),
            (len(self.warnings), "warning"),
            (self.tables, "table"),
            (self.files, "file"),
        )
        errors, warnings, tables, files = (f"{n:,} {what}{'s' * (n != 1)}" for n, what in parts)
        return f"{errors} and {warnings} in {tables}, {files} read"
