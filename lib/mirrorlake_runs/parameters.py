"""A step's parameters: their types and defaults, the check of values, the templates in them.

A notebook's parameters are the assignments in its cell tagged `parameters`, such as
`months: int = 3  # how many`. Types that are not known here take any value.

Templates are `{{ date }}`, `{{ run_id }}`, `{{ env.NAME }}`, `{{ steps.… }}`. Jinja's sandbox
evaluates them. A name that is not known is an error; a text that is one template keeps the type of
its value. Steps are known only to those that need them.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import json
import os
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mirrorlake.errors import UsageError

_KNOWN: dict[str, Any] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict)}
_KNOWN |= {"Any": Any, "Optional": typing.Optional, "Union": typing.Union}
_KNOWN |= {"List": list, "Dict": dict, "Literal": typing.Literal}
_WORDS = {"true": True, "yes": True, "false": False, "no": False}
_ONE = re.compile(r"\{\{((?:(?!\}\}).)*)\}\}", re.DOTALL)
_MARK = re.compile(r"\{\{|\{%|\{#")
_NAMES = ("date", "days", "env", "run_id", "steps")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a notebook.

    Attributes:
        annotation: its type as written, or that of its default; empty if neither is known.
    """

    name: str
    annotation: str

    def check(self, value: Any, *, as_text: bool = False) -> Any:
        """A value in the parameter's type.

        Args:
            value: what was given, in a plan for example.
            as_text: whether it is a text that stands for the value, as on a command line.

        Raises:
            UsageError: it is not of the parameter's type.
        """
        kind = _type_of(self.annotation)
        for candidate in _candidates(value, kind) if as_text else [value]:
            if _fits(candidate, kind):
                return float(candidate) if kind is float else candidate
        raise UsageError(
            f"Parameter {self.name} is {value!r}, which is not of type {self.annotation}.",
            hint=f"give a value of type {self.annotation}.",
        )


def read_parameters(notebook: Path) -> dict[str, Parameter]:
    """The parameters of a notebook, in its order; none if no cell has the tag.

    Raises:
        UsageError: the file is no notebook, or its parameters are no Python.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        tagged = [c for c in cells if "parameters" in c.get("metadata", {}).get("tags", [])]
        sources = ["".join(cell["source"]) for cell in tagged[:1]]
        body = ast.parse("\n".join(sources)).body
    except FileNotFoundError as error:
        raise UsageError(f"There is no notebook {notebook}.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
        raise UsageError(f"{notebook} can't be read as a notebook: {error}.") from error
    found: dict[str, Parameter] = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, written = node.target.id, ast.unparse(node.annotation).strip("'\"")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, written = node.targets[0].id, ""
            with contextlib.suppress(ValueError, TypeError):
                default = ast.literal_eval(node.value)
                written = "" if default is None else type(default).__name__
        else:
            continue
        found[name] = Parameter(name, written)
    return found


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """A document in which each part that is no dict and no list is another, at any depth."""
    if isinstance(value, dict):
        return {key: map_leaves(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [map_leaves(part, change) for part in value]
    return change(value)


def texts_in(value: Any) -> Iterator[str]:
    """The texts in a document, at any depth; its keys are not among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_in(part)


def has_template(value: Any) -> bool:
    """Whether a template is in a value, at any depth."""
    return any(_MARK.search(text) for text in texts_in(value))


def steps_named(value: Any) -> set[str]:
    """The steps whose results the templates in a value use.

    Raises:
        UsageError: a template that can't be read, or a name that templates don't have.
    """
    texts = [text for text in texts_in(value) if _MARK.search(text)]
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
    return map_leaves(value, lambda part: _filled(part, known))


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


def _candidates(text: str, kind: Any) -> list[Any]:
    """What a text may mean, the likeliest first."""
    found: list[Any] = [None] if text in ("null", "None", "~") else []
    with contextlib.suppress(yaml.YAMLError):
        found.append(yaml.safe_load(text))
    if text.lower() in _WORDS:
        found.append(_WORDS[text.lower()])
    for number in (int, float):
        with contextlib.suppress(ValueError):
            found.append(number(text))
    if kind is Any:
        return [*found, text]
    # A text for a parameter that takes texts stays as it is: 007, 1e3, yes, 2026-01-01.
    return [found[0], text, *found] if found[:1] == [None] and kind is not str else [text, *found]


def _type_of(annotation: str) -> Any:
    """A type from its text; Any if it is none of those that are known."""
    if not annotation:
        return Any
    try:
        return _evaluate(ast.parse(annotation, mode="eval").body)
    except (SyntaxError, KeyError, TypeError):
        return Any


def _evaluate(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return _KNOWN[node.id]
    if isinstance(node, ast.Attribute):  # typing.Optional
        return _KNOWN[node.attr]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return typing.Union.__getitem__((_evaluate(node.left), _evaluate(node.right)))
    if isinstance(node, ast.Tuple):
        return tuple(_evaluate(part) for part in node.elts)
    if isinstance(node, ast.Subscript):
        return _evaluate(node.value)[_evaluate(node.slice)]
    raise KeyError(ast.dump(node))


def _fits(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if kind is None or kind is type(None):
        return value is None
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in inner)
    if origin is typing.Literal:
        return value in inner
    if origin is list:
        return isinstance(value, list) and all(_fits(part, inner[0]) for part in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(key, inner[0]) and _fits(part, inner[1]) for key, part in value.items()
        )
    if isinstance(value, bool):  # to Python it is an int, too
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _filled(value: Any, known: dict[str, Any]) -> Any:
    if not isinstance(value, str) or not _MARK.search(value):
        return value
    from jinja2 import TemplateError, Undefined

    environment = _environment()
    try:
        if one := _ONE.fullmatch(value.strip()):
            expression = environment.compile_expression(one[1].strip(), undefined_to_none=False)
            result = expression(**known)
            if isinstance(result, Undefined):
                str(result)  # raises, with the name
            if isinstance(result, datetime.date):
                return result.isoformat()
            return _plain(result, value)
        return environment.from_string(value).render(**known)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise UsageError(f"The template {value!r} fails: {error}.") from error


def _plain(value: Any, text: str) -> Any:
    """A value that a notebook can be given."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part, text) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part, text) for key, part in value.items()}
    raise UsageError(f"The template {text!r} gives a {type(value).__name__}, not a plain value.")


def _environment() -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    found = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)  # no HTML
    found.globals.clear()  # range, cycler and the like could fill the memory
    return found
