"""A port for a server of a test's own, so that several runs go side by side."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
