"""Row tracking: stable row ids, changes with ids, and the history of one row."""
