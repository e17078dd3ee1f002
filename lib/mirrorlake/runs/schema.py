"""The check of a plan's form: `plan.schema.json`, which editors read too, with our own messages."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from mirrorlake.errors import UsageError

SCHEMA = Path(__file__).with_name("plan.schema.json")


@cache
def _validator() -> Any:
    from mirrorlake.runs.quick_jsonschema import jsonschema

    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator(schema)


def check_form(document: dict[str, Any], origin: str) -> None:
    """Checks that a document has the form of a plan.

    Args:
        document: the plan as read.
        origin: where it comes from, in messages.

    Raises:
        UsageError: it has not; says where and what.
    """
    steps = document.get("steps")
    if not isinstance(steps, list) or not steps:
        raise UsageError(f"{origin} has no list of steps.", hint="see parameters/plans/demo.yaml.")
    for step in steps:
        if not isinstance(step, dict) or not isinstance(step.get("notebook"), str):
            raise UsageError(f"A step of {origin} names no notebook: {step!r}.")
    if any(not isinstance(key, str) for key in _keys(document)):
        raise UsageError(f"{origin} has a key that is no text.", hint="put it in quotes.")
    errors = sorted(_validator().iter_errors(document), key=lambda error: list(error.path))
    if errors:
        first = errors[0]
        where = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first.path)
        place = f" at {where} (steps counted from 1)" if where else ""
        raise UsageError(
            f"{origin} is not a plan{place}: {first.message}.", hint="see docs/schedule.md."
        )


def _keys(value: Any) -> list[Any]:
    """All keys in a document, at any depth."""
    if isinstance(value, dict):
        return [*value, *(key for part in value.values() for key in _keys(part))]
    if isinstance(value, list):
        return [key for part in value for key in _keys(part)]
    return []
