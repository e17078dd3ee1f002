"""Views that are kept as Delta tables and refreshed by what changed in their sources."""
