"""Whether a table should have a partitioning policy, and which: a clear no where it is no.

The rules are the original's guidance: filters on a key of 10,000 values and more, joins and
aggregations on one of 1,000,000 and more, moments out of order; nothing where a partition would
hold less than 1 GB. A survey of the table is all they read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mirrorlake.layout.partitioning.policy import (
    BY_PARTITION,
    DAY,
    DEFAULT_ROWS,
    DEFAULT_SIZE,
    RECOMMENDED_PARTITIONS,
    UNIFORM,
    HashKey,
    Policy,
    RangeKey,
)
from mirrorlake.layout.partitioning.survey import Survey, TextFacts
from mirrorlake.text_table import TextTable, html_table

MEDIUM, HIGH, LARGE = 10_000, 1_000_000, 10_000_000
LEAST_BYTES = 2**30
_LARGE_SHARE = 0.05
_OUT_OF_ORDER = 0.25
_NO = "leave the table without a policy; its files then follow the time of their arrival"


@dataclass(frozen=True)
class Finding:
    """One piece of advice, in the shape of the other checks' findings."""

    rule: str
    table: str
    column: str | None
    message: str
    fix: str

    def as_dict(self) -> dict[str, Any]:
        """The finding as the commands' `--json` shows it."""
        return {
            "rule": self.rule,
            "table": self.table,
            "file": None,
            "row": None,
            "column": self.column,
            "message": self.message,
            "fix": self.fix,
        }


@dataclass(frozen=True)
class Advice:
    """What to do about a table.

    Attributes:
        table: which table.
        policy: the policy to set; None for a clear no.
        findings: the reasons, the decisive ones first.
    """

    table: str
    policy: Policy | None
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        policy = None if self.policy is None else self.policy.document()
        return {"policy": policy, "findings": [finding.as_dict() for finding in self.findings]}

    def shown(self) -> TextTable:
        """One row a finding."""
        rows = tuple((f.rule, f.column, f.message, f.fix) for f in self.findings)
        return TextTable(("rule", "column", "what", "fix"), rows)

    def __repr__(self) -> str:
        if self.policy is None:
            return f"{self.table}: no policy"
        return f"{self.table}: a policy on {' and '.join(self.policy.columns)}"

    def _repr_html_(self) -> str:
        return html_table(self.shown())


def advise(
    survey: Survey, *, least_bytes: int = LEAST_BYTES, medium: int = MEDIUM, high: int = HIGH
) -> Advice:
    """Applies the guidance to a table.

    Args:
        survey: of the table.
        least_bytes: what a partition must hold at least, compressed.
        medium: values from which on filters gain.
        high: values from which on joins and aggregations gain.
    """
    advisor = _Advisor(survey, least_bytes, medium, high)
    hash_key = advisor.hash_key()
    range_key = advisor.range_key(1 if hash_key is None else hash_key.max_partition_count)
    findings = [*advisor.on_view(), *advisor.on_texts(), *advisor.on_times()]
    if hash_key is None and range_key is None:
        return Advice(survey.table, None, (*advisor.refusal(), *findings))
    policy = Policy(hash_key, range_key)
    return Advice(survey.table, policy, (*advisor.gains(policy), *findings))


class _Advisor:
    """The rules, over one survey."""

    def __init__(self, survey: Survey, least_bytes: int, medium: int, high: int) -> None:
        self._of = survey
        self._least, self._medium, self._high = least_bytes, medium, high

    def hash_key(self) -> HashKey | None:
        """On the column with most values, as many partitions as each is large enough for."""
        good = [text for text in self._of.texts if text.distinct >= self._medium]
        count = min(RECOMMENDED_PARTITIONS, self._of.size // self._least)
        if not good or count < 2:
            return None
        best = max(good, key=lambda text: (text.distinct, text.column))
        mode = BY_PARTITION if self._is_even(best) and best.distinct >= self._high else UNIFORM
        return HashKey(best.column, 2 ** int(math.log2(count)), 1, mode)

    def range_key(self, buckets: int) -> RangeKey | None:
        """On the moments that are most out of order, in spans large enough for so many buckets."""
        loose = [time for time in self._of.times if time.read_now >= _OUT_OF_ORDER and time.span]
        if not loose:
            return None
        best = max(loose, key=lambda time: (time.read_now, time.column))
        days = max(1, math.ceil(best.span / DAY * buckets * self._least / max(1, self._of.size)))
        if best.span < 2 * days * DAY:
            return None
        return RangeKey(best.column, 0, days * DAY)

    def refusal(self) -> Iterator[Finding]:
        """Why not."""
        if self._of.size < 2 * self._least:
            yield self._finding(
                "too small",
                None,
                f"{self._of.size:,} bytes make no two partitions of {self._least:,}",
                _NO,
            )
        else:
            yield self._finding(
                "no key",
                None,
                f"no text column has {self._medium:,} values, and moments lie in order",
                _NO,
            )

    def gains(self, policy: Policy) -> Iterator[Finding]:
        """What the policy is for, what it costs, what a query reads then."""
        text = json.dumps(policy.document(), ensure_ascii=False)
        if policy.hash:
            facts = next(one for one in self._of.texts if one.column == policy.hash.column)
            joins = policy.hash.mode == BY_PARTITION
            rule = "joins and aggregations" if joins else "filters"
            yield self._finding(
                rule,
                policy.hash.column,
                f"about {facts.distinct:,} values; an equality reads 1 of"
                f" {policy.hash.max_partition_count} partitions, and {facts.read_now:.0%} of the"
                " files now",
                f"set the policy {text}",
            )
            yield self._finding(
                "usage",
                policy.hash.column,
                "a hash key is much work in the background; no table says how it is asked",
                "set it only if most queries are equalities (=, IN) on this column, and many run at"
                " a time, as those of dashboards do",
            )
            if joins and facts.distinct < LARGE:
                yield self._finding(
                    "no large dimension",
                    policy.hash.column,
                    f"about {facts.distinct:,} values; below {LARGE:,} joins and aggregations alone"
                    " seldom pay for it",
                    "set it if most queries join or aggregate on this column, or filter by it",
                )
        if policy.range:
            time = next(one for one in self._of.times if one.column == policy.range.column)
            bins = math.ceil(time.span / policy.range.range_size)
            yield self._finding(
                "out of order",
                policy.range.column,
                f"a day touches {time.read_now:.0%} of the files now, and 1 of {bins} spans then",
                f"set the policy {text}; with OverrideCreationTime where retention and --hot are to"
                " go by this column",
            )
        operations = max(
            1, math.ceil(self._of.rows / DEFAULT_ROWS), math.ceil(self._of.size / DEFAULT_SIZE)
        )
        yield self._finding(
            "cost",
            None,
            f"history: {operations} operations, {self._of.rows:,} rows, {self._of.size:,} bytes",
            "leave EffectiveDateTime out for new data only, or set it back some days at a time",
        )

    def on_view(self) -> Iterator[Finding]:
        """What is different about the table of a view."""
        if self._of.is_view:
            yield self._finding(
                "view",
                None,
                "a refresh writes changed groups anew, and they are the tail again",
                "partition by what the view groups by, and only if it is asked far more often than"
                " refreshed",
            )

    def on_texts(self) -> Iterator[Finding]:
        """Columns with too few values, and outliers of the others."""
        for text in self._of.texts:
            if text.distinct < self._medium:
                yield self._finding(
                    "few values",
                    text.column,
                    f"about {text.distinct:,} values; at least {self._medium:,} are worth a hash",
                    "no hash key on it",
                )
                continue
            for what, rows in (
                ("NULL", text.nulls),
                ("empty text", text.empty),
                ("words such as 'N/A'", text.generic),
                (f"the one value {text.top_value!r}", text.top_rows),
            ):
                if self._is_large(rows):
                    yield self._finding(
                        "outlier value",
                        text.column,
                        f"{rows:,} of {self._of.rows:,} rows hold {what}",
                        "mend or filter them before they arrive; till then each such value gets"
                        " files of its own",
                    )

    def on_times(self) -> Iterator[Finding]:
        """Moments in order, and far ones."""
        for time in self._of.times:
            if time.far:
                yield self._finding(
                    "far dates",
                    time.column,
                    f"{time.far:,} rows lie far from all others",
                    "mend or filter them before they arrive; till then they share one file",
                )
            if self._is_large(time.nulls):
                yield self._finding(
                    "outlier value",
                    time.column,
                    f"{time.nulls:,} of {self._of.rows:,} rows hold NULL, all of them in the bin of"
                    " the reference",
                    "mend or filter them before they arrive",
                )
            if time.read_now < _OUT_OF_ORDER:
                yield self._finding(
                    "in order",
                    time.column,
                    f"a day touches {time.read_now:.0%} of the files already",
                    "no range key on it",
                )

    def _is_large(self, rows: int) -> bool:
        return rows > _LARGE_SHARE * max(1, self._of.rows)

    def _is_even(self, text: TextFacts) -> bool:
        return not any(map(self._is_large, (text.nulls, text.empty, text.generic, text.top_rows)))

    def _finding(self, rule: str, column: str | None, message: str, fix: str) -> Finding:
        return Finding(rule, self._of.table, column, message, fix)
