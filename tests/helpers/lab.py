"""JavaScript conditions for pages of JupyterLab."""

from __future__ import annotations

# The current notebook has an idle kernel.
READY = (
    "() => window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
    " === 'idle'"
)
