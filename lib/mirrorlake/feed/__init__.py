"""The change feed: read it, find out what stands in its way, keep it, build tables on it."""
