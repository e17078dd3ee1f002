"""What the linter found: one finding per place, and all of them as a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mirrorlake.findings import Finding, findings_document, findings_table
from mirrorlake.lint.rules import ERROR, RULES, WARNING
from mirrorlake.text_table import TextTable


@dataclass(frozen=True, kw_only=True)
class LintFinding(Finding):
    """One thing that is wrong, and where; the rule's id is as in `docs/lint.md`."""

    severity: str

    def as_dict(self) -> dict[str, Any]:
        """The finding as `--json` shows it."""
        return {"rule": self.rule, "severity": self.severity} | super().as_dict()


def finding(
    rule: str,
    message: str,
    *,
    table: str | None = None,
    file: str | None = None,
    row: int | None = None,
    column: str | None = None,
    fix: str = "",
) -> LintFinding:
    """A finding of a rule; the rule's own fix unless there is a better one."""
    known = RULES[rule]
    return LintFinding(
        rule=rule,
        severity=known.severity,
        table=table and _utf8(table),
        file=file and _utf8(file),
        row=row,
        column=column and _utf8(column),
        message=_utf8(message),
        fix=_utf8(fix) or known.fix,
    )


def _utf8(text: str) -> str:
    """A name on disk need not be UTF-8; as text of a document it has to be."""
    return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True)
class LintReport:
    """All findings, table by table.

    Attributes:
        tables: how many tables were checked.
        files: how many data files were read.
    """

    findings: tuple[LintFinding, ...]
    tables: int
    files: int

    @property
    def errors(self) -> tuple[LintFinding, ...]:
        """What the mirror stops at, or never sees."""
        return tuple(f for f in self.findings if f.severity == ERROR)

    @property
    def warnings(self) -> tuple[LintFinding, ...]:
        """What works, but probably not as it is meant."""
        return tuple(f for f in self.findings if f.severity == WARNING)

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return findings_document(self.findings)

    def shown(self) -> TextTable:
        """One row per finding."""
        columns = ("severity", "rule", "table", "file", "row", "column", "message", "fix")
        return findings_table(self.findings, columns)

    def _repr_html_(self) -> str:
        return self.shown()._repr_html_()

    def __repr__(self) -> str:
        parts = (
            (len(self.errors), "error"),
            (len(self.warnings), "warning"),
            (self.tables, "table"),
            (self.files, "file"),
        )
        errors, warnings, tables, files = (f"{n:,} {what}{'s' * (n != 1)}" for n, what in parts)
        return f"{errors} and {warnings} in {tables}, {files} read"
