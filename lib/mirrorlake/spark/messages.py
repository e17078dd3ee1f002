"""What a Spark or Delta exception says, in one line."""

from __future__ import annotations

_DEPTH = 5


def spark_message(error: BaseException) -> str:
    """The messages of a JVM exception and its causes, without their stacks."""
    # PySpark looks Delta's error classes up in Spark's own list and fails over it: ask the JVM.
    origin = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    texts: list[str] = []
    while origin is not None and len(texts) < _DEPTH:
        texts.append(str(origin.getMessage() or origin.getClass().getSimpleName()))
        origin = origin.getCause()
    text = " ← ".join(dict.fromkeys(texts)) if texts else str(error)
    # The analyser appends its plan after a semicolon; nobody reads that in a message.
    return " ".join(text.split(";\n")[0].split()) or type(error).__name__
