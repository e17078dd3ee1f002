"""A notebook's parameters: their types and defaults, and the check of values against them.

They are the assignments in the cell tagged `parameters`, such as `months: int = 3  # how many`.
Types that are not known here take any value.
"""

from __future__ import annotations

import ast
import contextlib
import json
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mirrorlake.errors import UsageError

_KNOWN: dict[str, Any] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict)}
_KNOWN |= {"Any": Any, "Optional": typing.Optional, "Union": typing.Union, "None": None}
_KNOWN |= {"List": list, "Dict": dict, "Literal": typing.Literal}
_WORDS = {"true": True, "yes": True, "false": False, "no": False}
_MISSING: Any = object()


@dataclass(frozen=True)
class Parameter:
    """One parameter of a notebook.

    Attributes:
        annotation: its type as written, or that of its default; empty if neither is known.
        default: its value in the notebook, if that is a plain one.
    """

    name: str
    annotation: str
    default: Any = None

    def read(self, text: str) -> Any:
        """A value that was given as text on the command line.

        Raises:
            UsageError: it is not of the parameter's type.
        """
        kind = _type_of(self.annotation)
        for candidate in _candidates(text, kind):
            if _fits(candidate, kind):
                return float(candidate) if kind is float else candidate
        raise self._refusal(text)

    def check(self, value: Any) -> Any:
        """A value that was given as a value, in a plan for example.

        Raises:
            UsageError: it is not of the parameter's type.
        """
        kind = _type_of(self.annotation)
        if not _fits(value, kind):
            raise self._refusal(value)
        return float(value) if kind is float else value

    def _refusal(self, value: Any) -> UsageError:
        return UsageError(
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
        else:
            continue
        default: Any = _MISSING
        with contextlib.suppress(ValueError, TypeError):
            default = ast.literal_eval(node.value) if node.value else _MISSING
        if not written and default is not _MISSING and default is not None:
            written = type(default).__name__
        found[name] = Parameter(name, written, None if default is _MISSING else default)
    return found


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
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
