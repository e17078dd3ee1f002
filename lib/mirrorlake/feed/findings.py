"""What the doctor says: findings, and the parts of a range that can be read."""

from __future__ import annotations

from dataclasses import dataclass

from mirrorlake.results import Finding, Findings, TextTable


@dataclass(frozen=True, kw_only=True)
class FeedFinding(Finding):
    """One thing to know before a feed or row ids are read.

    Attributes:
        file: the file concerned, relative to the table.
        versions: first and last version concerned.
        blocks: whether it stands in the way of reading the range.
    """

    versions: tuple[int, int]
    blocks: bool = True


@dataclass(frozen=True)
class Diagnosis(Findings):
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
    findings: tuple[FeedFinding, ...]
    readable: tuple[tuple[int, int], ...]

    @property
    def blocking(self) -> tuple[FeedFinding, ...]:
        """The findings that stand in the way of reading the whole range."""
        return tuple(finding for finding in self.findings if finding.blocks)

    def shown(self) -> TextTable:
        """One row a finding."""
        rows = tuple((f.rule, span_text(f.versions), f.message, f.fix) for f in self.findings)
        return TextTable(("rule", "versions", "what", "fix"), rows)

    def __repr__(self) -> str:
        return (
            f"{self.table}, versions {self.start} to {self.end}: {len(self.findings)} findings,"
            f" {len(self.blocking)} in the way"
        )


def span_text(span: tuple[int, int], noun: str = "") -> str:
    """`3` or `3 to 7`; with a noun `version 3` or `versions 3 to 7`."""
    if span[0] == span[1]:
        return f"{noun} {span[0]}".strip()
    return f"{noun}s {span[0]} to {span[1]}" if noun else f"{span[0]} to {span[1]}"
