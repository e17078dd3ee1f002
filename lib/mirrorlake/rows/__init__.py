"""Row tracking: stable ids of rows, how far they can be trusted, and what they make possible."""
