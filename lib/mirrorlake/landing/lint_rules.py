"""The rules of the linter: what each one finds, why it matters, and how to fix it.

The rules are defined in `lint_rules.yaml`. `python -m mirrorlake.landing.lint_rules` prints them as
the page `docs/lint.md`; a test compares the two.
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
The linter checks the files of a landing zone before the mirror applies them. The command
`./mirrorlake lint ROOT` checks all tables; with `--table`, it checks only one. The linter changes
nothing and needs no Spark.

The linter checks only files that the mirror has not applied yet. It reports all problems of a file,
each with file, row and column. Rows are counted from 1. If several rows of a file have the same
problem, it reports the first row and the number of rows. If two files together cause a problem, it
reports the problem at the first of them. If a text file can't be read to its end, it reports only
the first problem. It reads the footers, markers and keys of Parquet files, but not all pages of
all columns.

- An **error** stops a table, or means that rows are never applied. *The table stops* means that the
  mirror applies no further file of the table until the problem is solved. Other tables continue.
- A **warning** does not stop a table, but the result is probably not what you intended.
- **Information** is about something that mirrorlake accepts, but other mirrors may not.

The exit status is 1 only if there is an error. With `--json`, the command prints
`{"findings": [{rule, severity, table, file, row, column, message, fix}]}`; fields that do not apply
are null.
"""
ERROR, WARNING = "error", "warning"  # only errors set the exit status to 1


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        section: the heading of the rule on the page.
        id: the name of the rule; it never changes.
        severity: `error`, `warning` or `information`.
        what: what the rule finds, as one sentence.
        why: the consequence.
        fix: the action, in the imperative.
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
    """Return the rules as a Markdown page."""
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
    """One problem and its place; `docs/lint.md` lists the ids of rules."""

    severity: str

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as `--json` prints it."""
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
    """Return a finding of a rule, with the rule's own fix unless another one is given."""
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
    """Return text that is valid UTF-8; names on disk need not be."""
    return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True)
class LintReport(Findings):
    """The findings, table by table.

    Attributes:
        findings: the findings.
        tables: the number of checked tables.
        files: the number of data files that were read.
    """

    findings: tuple[LintFinding, ...]
    tables: int
    files: int
    fields = ("severity", "rule", "table", "file", "row", "column", "message", "fix")

    @property
    def errors(self) -> tuple[LintFinding, ...]:
        """The findings that stop the mirror, or hide rows from it."""
        return tuple(f for f in self.findings if f.severity == ERROR)

    @property
    def warnings(self) -> tuple[LintFinding, ...]:
        """The findings that the mirror accepts, but that are probably not intended."""
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
