"""The landing zone's published format: publish, read and check tables' files. Needs no Spark."""
