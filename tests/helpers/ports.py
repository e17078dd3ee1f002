"""Free ports for servers of tests, so that several test runs can run in parallel."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
