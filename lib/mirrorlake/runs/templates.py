"""Templates in parameters: `{{ date }}`, `{{ run_id }}`, `{{ env.NAME }}`, `{{ steps.… }}`.

Jinja's sandbox evaluates them. A name that is not known is an error; a text that is one template
keeps the type of its value. Steps are known only to those that need them.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from mirrorlake.errors import UsageError

_ONE = re.compile(r"\{\{((?:(?!\}\}).)*)\}\}", re.DOTALL)
_MARK = re.compile(r"\{\{|\{%|\{#")
_NAMES = ("date", "days", "env", "run_id", "steps")


def has_template(value: Any) -> bool:
    """Whether a template is in a value, at any depth."""
    return any(_MARK.search(text) for text in _texts(value))


def steps_named(value: Any) -> set[str]:
    """The steps whose results the templates in a value use.

    Raises:
        UsageError: a template that can't be read, or a name that templates don't have.
    """
    texts = [text for text in _texts(value) if _MARK.search(text)]
    if not texts:
        return set()
    from jinja2 import TemplateSyntaxError, meta, nodes

    found: set[str] = set()
    for text in texts:
        try:
            tree = _environment().parse(text)
        except TemplateSyntaxError as error:
            raise UsageError(f"The template {text!r} can't be read: {error.message}.") from error
        if unknown := sorted(meta.find_undeclared_variables(tree) - set(_NAMES)):
            raise UsageError(
                f"The template {text!r} has the unknown name {', '.join(unknown)}.",
                hint=f"templates know {', '.join(_NAMES)}.",
            )
        for kind, key in ((nodes.Getattr, "attr"), (nodes.Getitem, "arg")):
            for node in tree.find_all(kind):
                of = getattr(node, "node", None)
                if isinstance(of, nodes.Name) and of.name == "steps":
                    part = getattr(node, key)
                    found.add(str(part.value if isinstance(part, nodes.Const) else part))
    return found


def fill(value: Any, known: dict[str, Any]) -> Any:
    """A value with its templates filled in, at any depth.

    Args:
        value: a parameter's value.
        known: what templates know, from `known_names`.

    Raises:
        UsageError: a template fails, or uses what is not there.
    """
    if isinstance(value, dict):
        return {key: fill(part, known) for key, part in value.items()}
    if isinstance(value, list):
        return [fill(part, known) for part in value]
    if not isinstance(value, str) or not _MARK.search(value):
        return value
    return _attempt(value, lambda: _fill_text(value, known))


def known_names(
    day: datetime.date, run_id: str, steps: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What templates know.

    Args:
        day: the run's date.
        run_id: the run's id.
        steps: the documents of the steps that are done, by name.
    """
    return {
        "date": day,
        "days": lambda count: datetime.timedelta(days=count),
        "env": dict(os.environ),
        "run_id": run_id,
        "steps": steps,
    }


def _fill_text(text: str, known: dict[str, Any]) -> Any:
    from jinja2 import Undefined

    environment = _environment()
    if one := _ONE.fullmatch(text.strip()):
        result = environment.compile_expression(one[1].strip(), undefined_to_none=False)(**known)
        if isinstance(result, Undefined):
            str(result)  # raises, with the name
        return result.isoformat() if isinstance(result, datetime.date) else _plain(result, text)
    return environment.from_string(text).render(**known)


def _plain(value: Any, text: str) -> Any:
    """A value that a notebook can be given."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part, text) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part, text) for key, part in value.items()}
    raise UsageError(f"The template {text!r} gives a {type(value).__name__}, not a plain value.")


def _attempt(text: str, call: Callable[[], Any]) -> Any:
    from jinja2 import TemplateError

    try:
        return call()
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise UsageError(f"The template {text!r} fails: {error}.") from error


def _environment() -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    found = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)  # no HTML
    found.globals.clear()  # range, cycler and the like could fill the memory
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
