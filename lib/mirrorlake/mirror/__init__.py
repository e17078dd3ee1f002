"""From the landing zone to Delta tables: what is pending, planned, collapsed, applied, reported."""
