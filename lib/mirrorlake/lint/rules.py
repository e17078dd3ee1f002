"""The rules of the linter, as `rules.yaml` has them: what each finds, why that matters, what to do.

`python -m mirrorlake.lint.rules` prints them as the page `docs/lint.md`; a test compares the two.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import yaml

from mirrorlake import lint

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
    page, section = f"# The linter's rules\n\n{lint.__doc__}", ""
    for rule in RULES.values():
        if rule.section != section:
            section = rule.section
            page += f"\n## {section}\n"
        text = textwrap.fill(f"{rule.what} {rule.why}", 100, break_on_hyphens=False)
        page += f"\n### `{rule.id}`: {rule.severity}\n\n{text}\n\nFix: {rule.fix}\n"
    return page


if __name__ == "__main__":
    sys.stdout.write(as_page())
