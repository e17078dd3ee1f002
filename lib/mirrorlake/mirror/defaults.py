"""What new tables of a lake are made with, kept in the lake; other tables stay as they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from mirrorlake.kept import read_kept
from mirrorlake.names import STATE
from mirrorlake.storage import Storage

FORMAT = 1
_PATH = f"{STATE}/defaults.json"


@dataclass(frozen=True)
class TableDefaults:
    """The defaults of a lake's new tables.

    Attributes:
        deletion_vectors: whether they have deletion vectors; see `MirrorOptions`.
    """

    deletion_vectors: bool = False


def read_defaults(storage: Storage) -> TableDefaults:
    """A lake's defaults.

    Raises:
        FormatError: they are of a newer format.
    """
    document = read_kept(storage, _PATH, FORMAT) or {}
    return TableDefaults(bool(document.get("deletion_vectors", False)))


def write_defaults(storage: Storage, defaults: TableDefaults) -> None:
    """Puts a lake's defaults down."""
    storage.write_json(_PATH, {"format": FORMAT} | asdict(defaults))
