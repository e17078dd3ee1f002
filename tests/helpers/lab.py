"""What tests ask of a page of JupyterLab."""

from __future__ import annotations

# The current notebook has a kernel, and it waits.
READY = (
    "() => window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
    " === 'idle'"
)
