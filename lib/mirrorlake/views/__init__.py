"""Views that are kept as Delta tables and refreshed incrementally from their sources."""
