"""Parses SQL statements, finds tables by name, and registers them in a session's catalog."""
