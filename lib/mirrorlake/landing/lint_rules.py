"""The rules of the linter: what each finds, why it matters, and how to fix it.

The rules are in `lint_rules.yaml`. `python -m mirrorlake.landing.lint_rules` prints them as the
page `docs/lint.md`; a test compares the two.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mirrorlake.results import Finding, Findings

_INTRODUCTION = """\
`./mirrorlake lint ROOT` checks a landing zone, or one `--table` of it, before it is mirrored.

It only reads, and needs no Spark. Files that are applied already are not read again. Every problem
of the others is named, not only the first, with file, row and column; of a text file that can't be
read to its end, only the first. Rows are counted from 1; where several rows of a file have the same
problem, the first is named and all are counted. What concerns one file after the other is reported
at the first of them.

An **error** is what the mirror stops at, or rows that it never sees; a **warning** is what works,
but probably not as its author meant it. With an error the exit status is 1. `--json` prints
`{"findings": [{rule, severity, table, file, row, column, message, fix}]}`; what does not apply is
null. Footers, markers and keys are read, not every page of every column.
"""
ERROR, WARNING = "error", "warning"  # only errors make the command's exit status 1


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        section: the heading that it stands under.
        id: its name; it never changes.
        severity: `ERROR` or `WARNING`.
        what: what is found, as one sentence.
        why: what comes of it.
        fix: what to do, in the imperative.
    """

    section: str
    id: str
    severity: str
    what: str
    why: str
    fix: str


def _read_rules() -> dict[str, Rule]:
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    sections = yaml.safe_load(text)
    return {
        name: Rule(section, name, **fields)
        for section, rules in sections.items()
        for name, fields in rules.items()
    }


RULES = _read_rules()


def as_page() -> str:
    """The rules in Markdown, after what the package says of itself."""
    page, section = f"# The linter's rules\n\n{_INTRODUCTION}", ""
    for rule in RULES.values():
        if rule.section != section:
            section = rule.section
            page += f"\n## {section}\n"
        text = textwrap.fill(f"{rule.what} {rule.why}", 100, break_on_hyphens=False)
        page += f"\n### `{rule.id}`: {rule.severity}\n\n{text}\n\nFix: {rule.fix}\n"
    return page


if __name__ == "__main__":
    sys.stdout.write(as_page())


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
class LintReport(Findings):
    """All findings, table by table.

    Attributes:
        tables: how many tables were checked.
        files: how many data files were read.
    """

    findings: tuple[LintFinding, ...]
    tables: int
    files: int
    fields = ("severity", "rule", "table", "file", "row", "column", "message", "fix")

    @property
    def errors(self) -> tuple[LintFinding, ...]:
        """What the mirror stops at, or never sees."""
        return tuple(f for f in self.findings if f.severity == ERROR)

    @property
    def warnings(self) -> tuple[LintFinding, ...]:
        """What works, but probably not as it is meant."""
        return tuple(f for f in self.findings if f.severity == WARNING)

    def __repr__(self) -> str:
        parts = (
            (len(self.errors), "error"),
            (len(self.warnings), "warning"),
            (self.tables, "table"),
            (self.files, "file"),
        )
        errors, warnings, tables, files = (f"{n:,} {what}{'s' * (n != 1)}" for n, what in parts)
        return f"{errors} and {warnings} in {tables}, {files} read"
