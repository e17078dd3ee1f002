"""Findings: what a check found, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mirrorlake.results import TextTable


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


def findings_document(findings: Sequence[Finding]) -> dict[str, Any]:
    """The document that `--json` prints."""
    return {"findings": [finding.as_dict() for finding in findings]}


def findings_table(
    findings: Sequence[Finding], columns: tuple[str, ...] = ("rule", "table", "message", "fix")
) -> TextTable:
    """One row per finding, with these fields of it."""
    return TextTable.of(findings, columns)
