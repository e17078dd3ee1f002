"""Debezium's change events, of any database, by files of JSON lines and by a journal."""
