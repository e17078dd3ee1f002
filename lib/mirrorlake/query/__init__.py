"""Queries over a lake: table names, versions in SQL, the session's catalog."""
