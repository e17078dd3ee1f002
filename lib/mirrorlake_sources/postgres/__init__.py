"""PostgreSQL as a source: a slot, exported snapshots, and pgoutput's stream; no JVM."""

from mirrorlake_sources.postgres.source import PostgresSource

__all__ = ["PostgresSource"]
