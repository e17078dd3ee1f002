"""A run's figures as a text file for Prometheus, for its node exporter's textfile collector.

Each run replaces the file in one step. Lag and backlog come from the status of the lakes that the
run worked on, which needs no Spark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from mirrorlake.lake import Lake
from mirrorlake.paths import lake_path, may_be_lake
from mirrorlake.runs.results import RunSummary

STATUSES = ("done", "failed", "stopped", "skipped")


def write_metrics(
    path: Path, summary: RunSummary, document: dict[str, Any], roots: Iterable[str]
) -> None:
    """Writes the figures.

    Args:
        path: the file.
        summary: how the run went.
        document: its record, for the names of the steps.
        roots: the lakes that it worked on.

    Raises:
        OSError: the file can't be written.
    """
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"mirrorlake_{name}", text, ["plan", *labels], registry=registry)

    plan = summary.plan
    began, ended = map(datetime.fromisoformat, (summary.started, summary.ended))
    status = gauge("run_status", "1 for the status of the last run", "status")
    for name in STATUSES[:3]:
        status.labels(plan, name).set(name == summary.status)
    seconds = (ended - began).total_seconds()
    gauge("run_seconds", "How long the last run took").labels(plan).set(seconds)
    moment = gauge("run_ended_timestamp_seconds", "When the last run ended")
    moment.labels(plan).set(ended.timestamp())
    step_status = gauge("step_status", "1 for the status of a step", "step", "status")
    durations = gauge("step_seconds", "How long a step took", "step")
    records = gauge("record", "A number that a notebook recorded", "step", "name")
    for index, (kept, result) in enumerate(zip(document["steps"], summary.steps, strict=True), 1):
        step = f"{index:02d}-{kept['name']}"
        for name in STATUSES:
            step_status.labels(plan, step, name).set(name == result.status)
        durations.labels(plan, step).set(result.seconds)
        for name, value in result.records.items():
            if isinstance(value, (bool, int, float)) and math.isfinite(value):
                records.labels(plan, step, str(name)).set(value)
    lag = gauge("lag_seconds", "How far a table is behind its files", "root", "table")
    backlog = gauge("backlog_files", "How many files of a table wait", "root", "table")
    for root in sorted(roots):
        place = lake_path(root)
        for table in Lake(place).status().tables if may_be_lake(place) else ():
            lag.labels(plan, root, table.full_name).set(table.lag_seconds)
            backlog.labels(plan, root, table.full_name).set(table.backlog_files)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_to_textfile(str(path), registry)
