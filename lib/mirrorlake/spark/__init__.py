"""Spark's set-up: Java, the Delta jars, sessions. Only `gateway` touches the JVM."""
