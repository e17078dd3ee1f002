"""Publish databases, event streams and folders into the landing zone exactly once, without Spark.

Names are imported when they are first used, because each source needs other packages.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirrorlake.source_status import SourceReport
    from mirrorlake_sources.engine import run_source
    from mirrorlake_sources.folders import CsvDrops, DebeziumFiles, Journal, journals_of
    from mirrorlake_sources.kafka import KafkaSource
    from mirrorlake_sources.postgres.source import PostgresSource, check_postgres, publish_postgres
    from mirrorlake_sources.postgres.verify import Verification, verify_postgres
    from mirrorlake_sources.source import Batch, Group, Position, Source, read_reports

__all__ = [
    "Batch",
    "CsvDrops",
    "DebeziumFiles",
    "Group",
    "Journal",
    "KafkaSource",
    "Position",
    "PostgresSource",
    "Source",
    "SourceReport",
    "Verification",
    "check_postgres",
    "journals_of",
    "publish_postgres",
    "read_reports",
    "run_source",
    "verify_postgres",
]

_MODULES = {
    "engine": ["run_source"],
    "folders": ["CsvDrops", "DebeziumFiles", "Journal", "journals_of"],
    "kafka": ["KafkaSource"],
    "postgres.source": ["PostgresSource", "check_postgres", "publish_postgres"],
    "postgres.verify": ["Verification", "verify_postgres"],
    "source": ["Batch", "Group", "Position", "Source", "SourceReport", "read_reports"],
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
