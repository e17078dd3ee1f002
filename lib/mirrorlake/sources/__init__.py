"""Databases, event streams and folders, published into the landing zone exactly once; no Spark."""
