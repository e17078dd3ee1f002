"""What a rule of the linter is; the rules themselves are in `rules.py`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """How bad it is; only errors make the command's exit status 1."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Rule:
    """One row.

    Attributes:
        id: its name, for good.
        what: what is found, as one sentence.
        why: what comes of it.
        fix: what to do, in the imperative.
    """

    id: str
    severity: Severity
    what: str
    why: str
    fix: str
