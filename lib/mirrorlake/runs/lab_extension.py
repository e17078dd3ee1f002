"""The extension of JupyterLab that `lab` brings along: cards, words for figures, Spark's progress.

It is one script, `lab_extension.js`, which Lab loads as it is; nobody has to build or install it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from mirrorlake.names import fingerprint
from mirrorlake.paths import cache
from mirrorlake.runs.store import write_whole

_NAME = "mirrorlake"


@dataclass(frozen=True)
class Card:
    """A card of Lab's launcher.

    Attributes:
        path: the notebook, as Lab's file browser has it.
        label: what the card says.
        title: what is said where the mouse rests on it.
        category: the heading above it.
    """

    path: str
    label: str
    title: str
    category: str


def write_extension(cards: Iterable[Card]) -> Path:
    """Puts the extension into the cache, with these cards.

    Returns:
        The folder to name among Lab's `extra_labextensions_path`.
    """
    script = files("mirrorlake.runs").joinpath("lab_extension.js").read_text(encoding="utf-8")
    known = json.dumps([asdict(card) for card in cards], indent=1)
    text = f"const CARDS = {known};\n{script}"
    load = f"static/remoteEntry.{fingerprint(text)}.js"
    package = {
        "name": _NAME,
        "version": "0.1.0",
        "description": "Cards, words for figures and Spark's progress",
        "jupyterlab": {"extension": True, "_build": {"load": load, "extension": "./extension"}},
    }
    place = cache() / "lab-extensions"
    write_whole(place / _NAME / load, f"(() => {{\n{text}}})();\n")
    write_whole(place / _NAME / "package.json", json.dumps(package, indent=1))
    return place
