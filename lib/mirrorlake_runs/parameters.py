"""A step's parameters: types, defaults, checks, templates, secrets and their removal from output.

A notebook's parameters are the assignments in its cell tagged `parameters`, such as
`months: int = 3  # how many`. Parameters of other types than those in `_KNOWN` take any value.

Templates are `{{ date }}`, `{{ run_id }}`, `{{ env.NAME }}` and `{{ steps.… }}`. Jinja's sandbox
evaluates them. An unknown name is an error; a text that is one template keeps the type of its
value. A template can use only the steps that its own step needs.

`secret:NAME` as a value is a reference that the runner resolves from the environment, a folder of
files or the desktop's keyring. The kernel gets the secret outside of the notebook, and the runner
removes it from everything that a run writes.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import datetime
import html
import importlib
import json
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from mirrorlake.errors import UsageError

_KNOWN: dict[str, Any] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict)}
_KNOWN |= {"Any": Any, "Optional": typing.Optional, "Union": typing.Union}
_KNOWN |= {"List": list, "Dict": dict, "Literal": typing.Literal}
_WORDS = {"true": True, "yes": True, "false": False, "no": False}
_ONE = re.compile(r"\{\{((?:(?!\}\}).)*)\}\}", re.DOTALL)
_MARK = re.compile(r"\{\{|\{%|\{#")
_MAGIC = re.compile(r"^[%!].*", re.MULTILINE)  # a line that only IPython can read
_NAMES = ("date", "days", "env", "run_id", "steps")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a notebook.

    Attributes:
        name: its name.
        annotation: its type as written, or the type of its default; empty if neither is known.
    """

    name: str
    annotation: str

    def check(self, value: Any, *, as_text: bool = False) -> Any:
        """Return a value converted to the parameter's type.

        Args:
            value: the value, for example from a plan.
            as_text: whether it is a text that must be parsed, as on a command line.

        Raises:
            UsageError: the value does not have the parameter's type.
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
    """Return the parameters of a notebook in their order; empty if no cell is tagged `parameters`.

    IPython's magics, such as `%env HOME=.`, are ignored.

    Raises:
        UsageError: the file is not a notebook, or the cell is not valid Python.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        tagged = [c for c in cells if "parameters" in c.get("metadata", {}).get("tags", [])]
        sources = ["".join(cell["source"]) for cell in tagged[:1]]
        body = ast.parse(_MAGIC.sub("", "\n".join(sources))).body
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
    """Return a document with each value that is not a dict or a list replaced, at any depth."""
    if isinstance(value, dict):
        return {key: map_leaves(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [map_leaves(part, change) for part in value]
    return change(value)


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a document, at any depth, without its keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_in(part)


def has_template(value: Any) -> bool:
    """Return whether a value contains a template, at any depth."""
    return any(_MARK.search(text) for text in texts_in(value))


def steps_named(value: Any) -> set[str]:
    """Return the names of the steps whose results the templates in a value use.

    Raises:
        UsageError: a template is invalid, or uses an unknown name.
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
                hint=f"templates can use {', '.join(_NAMES)}.",
            )
        for kind, key in ((nodes.Getattr, "attr"), (nodes.Getitem, "arg")):
            for node in tree.find_all(kind):
                of = getattr(node, "node", None)
                if isinstance(of, nodes.Name) and of.name == "steps":
                    part = getattr(node, key)
                    found.add(str(part.value if isinstance(part, nodes.Const) else part))
    return found


def fill(value: Any, known: dict[str, Any]) -> Any:
    """Return a value with its templates evaluated, at any depth.

    Args:
        value: a parameter's value.
        known: the names for templates, from `known_names`.

    Raises:
        UsageError: a template fails, or uses a result that does not exist.
    """
    return map_leaves(value, lambda part: _filled(part, known))


def known_names(
    day: datetime.date, run_id: str, steps: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the names that templates can use.

    Args:
        day: the run's date.
        run_id: the run's id.
        steps: the documents of the completed steps, by name.
    """
    return {
        "date": day,
        "days": lambda count: datetime.timedelta(days=count),
        "env": dict(os.environ),
        "run_id": run_id,
        "steps": steps,
    }


def _candidates(text: str, kind: Any) -> list[Any]:
    """Return the possible meanings of a text, the most likely first."""
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
    # A parameter of type str keeps the text: 007, 1e3, yes, 2026-01-01.
    return [found[0], text, *found] if found[:1] == [None] and kind is not str else [text, *found]


def _type_of(annotation: str) -> Any:
    """Return the type of an annotation; Any if it is not supported."""
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
    if isinstance(value, bool):  # bool is a subclass of int
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
        name = re.search(r"has no attribute '(\w+)'$", str(error))
        if name and re.search(rf"\benv\W+{name[1]}\b", value):
            raise UsageError(
                f"The template {value!r} fails: the environment variable {name[1]} is not set.",
                hint=f"set it, or write `env.get('{name[1]}', 'DEFAULT')`.",
            ) from error
        raise UsageError(f"The template {value!r} fails: {error}.") from error


def _plain(value: Any, text: str) -> Any:
    """Return a value as plain JSON types."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part, text) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part, text) for key, part in value.items()}
    raise UsageError(f"The template {text!r} returns a {type(value).__name__}, not a plain value.")


def _environment() -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    found = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)  # not HTML
    found.globals.clear()  # functions such as range could fill the memory
    return found


HIDDEN = "[secret]"
FOLDERS = ("MIRRORLAKE_SECRETS", "CREDENTIALS_DIRECTORY")  # the second is systemd's
_REFERENCE = re.compile(r"secret:([A-Za-z0-9_][A-Za-z0-9_.-]*)")
_SHORTEST = 4


def is_secret(value: Any) -> bool:
    """Return whether a value refers to a secret, at any depth."""
    return bool(names_in(value))


def names_in(value: Any) -> set[str]:
    """Return the names of the secrets to which a value refers, at any depth."""
    return {found[1] for text in texts_in(value) if (found := _REFERENCE.fullmatch(text))}


def look_up(name: str) -> str:
    """Return the value of a secret.

    Raises:
        UsageError: the secret does not exist, or is too short to be removed reliably.
    """
    value = _find(name)
    if value is None:
        raise UsageError(
            f"There is no secret {name!r}.",
            hint=f"set the variable {name}, put a file of that name into the folder in "
            f"{FOLDERS[0]}, or run `keyring set mirrorlake {name}`.",
        )
    if len(value) < _SHORTEST:
        raise UsageError(
            f"The secret {name!r} is shorter than {_SHORTEST} characters.",
            hint="use a longer secret; a short one can't be removed reliably from a run's output.",
        )
    return value


def resolve(value: Any, secrets: dict[str, str]) -> Any:
    """Return a value with its references to secrets replaced by the secrets."""

    def resolved(part: Any) -> Any:
        found = _REFERENCE.fullmatch(part) if isinstance(part, str) else None
        return secrets[found[1]] if found else part

    return map_leaves(value, resolved)


class Scrubber:
    """Removes secrets from texts, in all common encodings.

    Args:
        values: the secrets.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values for form in _forms(value) if len(form) >= _SHORTEST}
        ordered = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return self._pattern.sub(HIDDEN, text) if self._pattern else text

    def value(self, value: Any) -> Any:
        """Return a document of dicts, lists and texts without secrets, in keys as well."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(key): self.value(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(part) for part in value]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            shown = str(value)
            return HIDDEN if self.text(shown) != shown else value
        return value

    def in_place(self, node: Any) -> None:
        """Remove secrets from a notebook's cells and outputs in place."""
        if self._pattern is None:
            return
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, part in list(items):
            if isinstance(part, (dict, list)):
                self.in_place(part)
            elif isinstance(part, str) and (clean := self.text(part)) != part:
                node[key] = clean
            if isinstance(key, str) and (clean_key := self.text(key)) != key:
                node[clean_key] = node.pop(key)


def _find(name: str) -> str | None:
    if name in os.environ:
        return os.environ[name]
    for variable in FOLDERS:
        if folder := os.environ.get(variable):
            try:
                return (Path(folder) / name).read_text(encoding="utf-8").rstrip("\r\n")
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(
                    f"The secret {name!r} can't be read from the folder in {variable}: {error}.",
                    hint="let the user of the run read the file, which must be UTF-8 text.",
                ) from None
    try:
        keyring = importlib.import_module("keyring")
    except ModuleNotFoundError:
        return None
    try:
        found = keyring.get_password("mirrorlake", name)
    except keyring.errors.KeyringError:  # the machine has no keyring
        return None
    return None if found is None else str(found)


def _forms(value: str) -> set[str]:
    """Return a secret as text, and as JSON, Python, HTML, URLs and base64 encode it."""
    data = value.encode()
    lines = [line for line in value.splitlines() if len(line) >= 2 * _SHORTEST]
    found = {value, *lines} if len(lines) > 1 else {value}
    for text in set(found):
        found |= {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        found |= {repr(text)[1:-1], html.escape(text), html.escape(text, quote=False)}
        found |= {quote(text), quote(text, safe="")}
    found |= {base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()}
    found.add(base64.b64encode(data).decode().rstrip("="))
    return found
