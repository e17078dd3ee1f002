"""The published format: names, metadata, markers, types, checks, and the publisher. No Spark."""
