"""A table folder's identity: `_mirrorlake.json`, put there by the mirror when it first sees it.

Missing means the folder is new, or was deleted and made again; the incarnation tells the two
folders apart even when their file numbers are the same.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.errors import InvalidNameError, MetadataError
from mirrorlake.kept import read_kept
from mirrorlake.names import IDENTITY, TableName
from mirrorlake.storage import Storage, to_json

FORMAT = 1
_APP = "mirrorlake/"


@dataclass(frozen=True)
class Identity:
    """Which incarnation of which folder this is."""

    table: TableName
    incarnation: str
    origin: TableName | None = None  # the folder's first name, where it was renamed since

    @property
    def app_id(self) -> str:
        """The id under which the table's own log keeps the last applied number."""
        return f"{_APP}{self.origin or self.table}/{self.incarnation}"

    @property
    def plans(self) -> str:
        """Where this incarnation's plans lie, relative to the lake's root; a rename moves none."""
        return f"{(self.origin or self.table).state_path}/{self.incarnation}"


def incarnations(snapshot: Snapshot | None) -> frozenset[str]:
    """The incarnations of its folder that a version of a table has rows from, or had."""
    apps = snapshot.txns if snapshot else {}
    return frozenset(app.rpartition("/")[2] for app in apps if app.startswith(_APP))


def read_identity(storage: Storage, table: TableName) -> Identity | None:
    """The identity in a table's folder, or None if the mirror has not seen this folder yet.

    Raises:
        MetadataError: the file is there but makes no sense.
        FormatError: it is of a newer format.
    """
    try:
        document = read_kept(storage, f"{table.folder}/{IDENTITY}", FORMAT)
        if document is None:
            return None
        named = document.get("table")
        origin = None if named is None else TableName.parse(named)
        return Identity(table, str(document["incarnation"]), None if origin == table else origin)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidNameError) as error:
        raise MetadataError(
            f"{IDENTITY} is broken.",
            file=IDENTITY,
            hint="delete it together with the folder's files and publish the table again.",
        ) from error


def is_in_folder(storage: Storage, table: TableName, identity: Identity) -> bool:
    """Whether a table's folder is of this very incarnation; raises as `read_identity`."""
    found = read_identity(storage, table)
    return found is not None and found.incarnation == identity.incarnation


def last_applied(storage: Storage, table: TableName) -> int:
    """The last applied number by the table's own log; 0 if the mirror has applied none."""
    identity = read_identity(storage, table)
    snapshot = read_snapshot(storage, table.table_path) if identity else None
    return snapshot.txns.get(identity.app_id, 0) if snapshot and identity else 0


def ensure_identity(storage: Storage, table: TableName) -> Identity:
    """The folder's identity, made now if it has none."""
    found = read_identity(storage, table)
    if found is None:
        write_identity(storage, Identity(table, uuid.uuid4().hex))
        found = read_identity(storage, table)
    if found is None:  # the folder was deleted right after the listing
        raise MetadataError(f"The folder of {table} is gone.", file=IDENTITY)
    return found


def renew_identity(storage: Storage, table: TableName) -> None:
    """Starts a new incarnation: a copied folder has brought along the other's identity."""
    path = f"{table.folder}/{IDENTITY}"
    storage.write(path, to_json(_document(Identity(table, uuid.uuid4().hex))))


def _document(identity: Identity) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "table": str(identity.origin or identity.table),
        "incarnation": identity.incarnation,
    }


def write_identity(storage: Storage, identity: Identity, *, make_folder: bool = False) -> None:
    """Puts an identity into a folder that has none; nothing happens if the folder is gone."""
    storage.create(
        f"{identity.table.folder}/{IDENTITY}", to_json(_document(identity)), make_folder=make_folder
    )
