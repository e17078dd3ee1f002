"""Read PostgreSQL as a source: a slot, exported snapshots, and pgoutput's stream; no JVM."""
