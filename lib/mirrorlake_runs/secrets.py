"""Secrets of a run: `secret:NAME` as a parameter's value is a reference that the runner resolves.

A name is looked up in the environment, in a folder of files, and in the desktop's keyring. The
value goes to the kernel outside of the notebook, and is scrubbed from all that a run writes.
"""

from __future__ import annotations

import base64
import html
import importlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mirrorlake.errors import UsageError
from mirrorlake_runs.parameters import map_leaves, texts_in

HIDDEN = "[secret]"
FOLDERS = ("MIRRORLAKE_SECRETS", "CREDENTIALS_DIRECTORY")  # the second is systemd's
_REFERENCE = re.compile(r"secret:([A-Za-z0-9_][A-Za-z0-9_.-]*)")
_SHORTEST = 4


def is_secret(value: Any) -> bool:
    """Whether a value, or a part of it at any depth, refers to a secret."""
    return bool(names_in(value))


def names_in(value: Any) -> set[str]:
    """The names of the secrets that a value refers to, at any depth."""
    return {found[1] for text in texts_in(value) if (found := _REFERENCE.fullmatch(text))}


def look_up(name: str) -> str:
    """A secret's value.

    Raises:
        UsageError: nobody knows the name, or the value is too short to be scrubbed.
    """
    value = _find(name)
    if value is None:
        raise UsageError(
            f"There is no secret {name!r}.",
            hint=f"set the variable {name}, put a file of that name into the folder that "
            f"{FOLDERS[0]} names, or `keyring set mirrorlake {name}`.",
        )
    if len(value) < _SHORTEST:
        raise UsageError(
            f"The secret {name!r} is shorter than {_SHORTEST} characters.",
            hint="so short a text can't be told from others in what a run writes.",
        )
    return value


def resolve(value: Any, secrets: dict[str, str]) -> Any:
    """A value with its references replaced by what they refer to."""

    def resolved(part: Any) -> Any:
        found = _REFERENCE.fullmatch(part) if isinstance(part, str) else None
        return secrets[found[1]] if found else part

    return map_leaves(value, resolved)


class Scrubber:
    """Takes secrets out of texts, in the forms in which they are commonly written.

    Args:
        values: the secrets.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values for form in _forms(value) if len(form) >= _SHORTEST}
        ordered = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> str:
        """The text without secrets."""
        return self._pattern.sub(HIDDEN, text) if self._pattern else text

    def value(self, value: Any) -> Any:
        """A document of dicts, lists and texts without secrets, keys included."""
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
        """Takes secrets out of a notebook's cells and outputs where they stand."""
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
        if (folder := os.environ.get(variable)) and (path := Path(folder) / name).is_file():
            return path.read_text(encoding="utf-8").rstrip("\r\n")
    try:
        keyring = importlib.import_module("keyring")
    except ModuleNotFoundError:
        return None
    try:
        found = keyring.get_password("mirrorlake", name)
    except keyring.errors.KeyringError:  # a machine without a desktop has none
        return None
    return None if found is None else str(found)


def _forms(value: str) -> set[str]:
    """A secret as it stands, and as JSON, Python, HTML, URLs and base64 write it."""
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
