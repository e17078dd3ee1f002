"""Spark's set-up: Java, the Delta jars, sessions.

Delta's transactions are in `gateway`, all else that is asked of a session's JVM in `jvm`; `shared`
and `runs/jvm` start and end one.
"""
