"""A table folder's identity: `_mirrorlake.json`, put there by the mirror when it first sees it.

Missing means the folder is new, or was deleted and made again; the incarnation tells the two lives
of a folder apart even when their file numbers are the same.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from mirrorlake.errors import MetadataError
from mirrorlake.names import IDENTITY, TableName
from mirrorlake.storage import Storage, to_json

FORMAT = 1


@dataclass(frozen=True)
class Identity:
    """Which life of which folder this is."""

    table: TableName
    incarnation: str

    @property
    def app_id(self) -> str:
        """The id under which the table's own log keeps the last applied number."""
        return f"mirrorlake/{self.table}/{self.incarnation}"


def read_identity(storage: Storage, table: TableName) -> Identity | None:
    """The identity in a table's folder, or None if the mirror has not seen this folder yet.

    Raises:
        MetadataError: the file is there but makes no sense.
    """
    try:
        document = json.loads(storage.read(f"{table.folder}/{IDENTITY}"))
        return Identity(table, str(document["incarnation"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataError(
            f"{IDENTITY} is broken.",
            file=IDENTITY,
            hint="delete it together with the folder's files and publish the table anew.",
        ) from error


def ensure_identity(storage: Storage, table: TableName) -> Identity:
    """The folder's identity, made now if it has none."""
    found = read_identity(storage, table)
    if found is None:
        fresh = {"format": FORMAT, "incarnation": uuid.uuid4().hex}
        storage.create(f"{table.folder}/{IDENTITY}", to_json(fresh))
        found = read_identity(storage, table)
    if found is None:  # the folder was deleted right after the listing
        raise MetadataError(f"The folder of {table} is gone.", file=IDENTITY)
    return found
