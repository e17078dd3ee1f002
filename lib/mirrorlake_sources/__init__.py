"""Databases, event streams and folders, published into the landing zone exactly once; no Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirrorlake_sources.postgres.source import check_postgres, publish_postgres

__all__ = ["check_postgres", "publish_postgres"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("mirrorlake_sources.postgres.source"), name)
