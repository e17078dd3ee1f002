"""Incremental views: stored as Delta tables, and refreshed incrementally from their sources."""
