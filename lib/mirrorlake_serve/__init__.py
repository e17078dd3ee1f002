"""Serve the landing zone through the storage protocol that publishers of Open Mirroring use.

The server needs no Spark; only a mirror beside it starts a session. Names are imported when they
are first used, because they need the packages of the extra `serve`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirrorlake_serve.lakes import DEFINITION, Item, Mirrors, Workspace
    from mirrorlake_serve.server import Ready, Settings, run_server
    from mirrorlake_serve.tokens import account_key, load_token

__all__ = [
    "DEFINITION",
    "Item",
    "Mirrors",
    "Ready",
    "Settings",
    "Workspace",
    "account_key",
    "load_token",
    "run_server",
]

_MODULES = {
    "lakes": ["DEFINITION", "Item", "Mirrors", "Workspace"],
    "server": ["Ready", "Settings", "run_server"],
    "tokens": ["account_key", "load_token"],
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
