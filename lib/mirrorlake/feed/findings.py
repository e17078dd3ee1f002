"""What the doctor says: findings, and the parts of a range that can be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mirrorlake.text_table import TextTable, html_table


@dataclass(frozen=True)
class Finding:
    """One thing to know before a read.

    Attributes:
        rule: what kind of thing it is.
        file: the file concerned, relative to the table.
        blocks: whether it stands in the way of reading the range.
        versions: first and last version concerned.
    """

    rule: str
    table: str
    message: str
    fix: str
    versions: tuple[int, int]
    file: str | None = None
    row: int | None = None
    column: str | None = None
    blocks: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The finding as the commands' `--json` shows it."""
        names = ("rule", "table", "file", "row", "column", "message", "fix")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Diagnosis:
    """What a range's feed is like.

    Attributes:
        table: which table.
        start: the range's first version.
        end: its last version.
        findings: ordered by version.
        readable: the longest parts of the range that a read can take, ascending.
    """

    table: str
    start: int
    end: int
    findings: tuple[Finding, ...]
    readable: tuple[tuple[int, int], ...]

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """The findings that stand in the way of reading the whole range."""
        return tuple(finding for finding in self.findings if finding.blocks)

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {"findings": [finding.as_dict() for finding in self.findings]}

    def shown(self) -> TextTable:
        """One row a finding."""
        rows = tuple((f.rule, span_text(f.versions), f.message, f.fix) for f in self.findings)
        return TextTable(("rule", "versions", "what", "fix"), rows)

    def __repr__(self) -> str:
        return (
            f"{self.table}, versions {self.start} to {self.end}: {len(self.findings)} findings,"
            f" {len(self.blocking)} in the way"
        )

    def _repr_html_(self) -> str:
        return html_table(self.shown())


def span_text(span: tuple[int, int], noun: str = "") -> str:
    """`3` or `3 to 7`; with a noun `version 3` or `versions 3 to 7`."""
    if span[0] == span[1]:
        return f"{noun} {span[0]}".strip()
    return f"{noun}s {span[0]} to {span[1]}" if noun else f"{span[0]} to {span[1]}"
