"""Versions of a table: readable ranges, differences, restore, frames, compaction and vacuum."""
