"""Read PostgreSQL as a source: replication slot, exported snapshots, and the pgoutput stream."""
