"""The figures of the pages under `docs/explain`: drawn by code when the site is built."""

from __future__ import annotations

from pathlib import Path


def draw_figures(folder: Path) -> None:
    """Draws all of them into a folder."""
    folder.mkdir(exist_ok=True)
