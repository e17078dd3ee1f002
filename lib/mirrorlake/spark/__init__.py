"""Spark: Java and jars, sessions, the JVM behind them, and what SQL needs as text."""
