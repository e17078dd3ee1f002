"""A table's versions: queries over them, differences, restore, frames; compaction and vacuum."""
