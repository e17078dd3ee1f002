"""What the server asks of a mirror. The command hands one over; the server itself has none."""

from __future__ import annotations

from typing import Any, Protocol

from mirrorlake.storage.files import Storage

RUNNING = "Running"
STOPPED = "Stopped"


class MirrorControl(Protocol):
    """Starts and stops mirrors, and knows how they stand. Every method may be slow."""

    def start(self, storage: Storage) -> None:
        """Mirrors this lake from now on; nothing happens if it is mirrored already.

        Raises:
            MirrorlakeError: there can be no mirror here.
        """

    def stop(self, storage: Storage) -> None:
        """Ends the mirror of this lake after the commit at hand; returns when it has ended."""

    def status(self, storage: Storage) -> tuple[str, str]:
        """The state of the lake's mirror in Fabric's words, and what is wrong, or ""."""

    def tables(self, storage: Storage) -> list[dict[str, Any]]:
        """One entry per table, as `getTablesMirroringStatus` has them."""
