"""A table's past: queries over versions and moments."""
