"""`_metadata.json`: a table's keys, as the publisher declares them.

Field names are read without regard to case. Keys may be added later, never changed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mirrorlake.errors import MetadataError
from mirrorlake.names import METADATA, TableName
from mirrorlake.storage import Storage, to_json


@dataclass(frozen=True)
class TableMetadata:
    """What `_metadata.json` says; `keys` is empty where there is none."""

    keys: tuple[str, ...] = ()
    upsert_by_default: bool = False

    @classmethod
    def parse(cls, data: bytes) -> TableMetadata:
        """Reads the document.

        Raises:
            MetadataError: not JSON, not an object, or a field of the wrong type.
        """
        try:
            document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            raise MetadataError(
                f"{METADATA} is not valid JSON: {error}.",
                file=METADATA,
                hint='write it again, as {"keyColumns": ["id"]}.',
            ) from error
        if not isinstance(document, dict):
            raise MetadataError(f"{METADATA} is not a JSON object.", file=METADATA)
        fields: dict[str, Any] = {}
        for name, value in document.items():
            if name.lower() in fields:
                raise MetadataError(f"{METADATA} has the field {name!r} twice.", file=METADATA)
            fields[name.lower()] = value
        keys = [] if fields.get("keycolumns") is None else fields["keycolumns"]
        if not isinstance(keys, list) or not all(isinstance(k, str) and k for k in keys):
            raise MetadataError(
                f"keyColumns is {keys!r}, not a list of column names.", file=METADATA
            )
        if len({key.lower() for key in keys}) != len(keys):
            raise MetadataError(f"keyColumns names a column twice: {keys!r}.", file=METADATA)
        upsert = fields.get("isupsertdefaultrowmarker", False)
        if not isinstance(upsert, bool):
            raise MetadataError(
                f"isUpsertDefaultRowMarker is {upsert!r}, not true or false.", file=METADATA
            )
        return cls(tuple(keys), upsert)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; two fields of one name contradict each other, so neither is taken."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {max(names, key=names.count)!r} occurs twice")
    return found


def read_metadata(storage: Storage, table: TableName) -> TableMetadata:
    """What the table's folder declares; nothing declared if there is no file."""
    try:
        return TableMetadata.parse(storage.read(f"{table.folder}/{METADATA}"))
    except FileNotFoundError:
        return TableMetadata()


def check_keys_kept(table: TableName, old: tuple[str, ...], new: tuple[str, ...]) -> None:
    """Keys once given can't be changed, nor taken away.

    Raises:
        MetadataError: the keys differ.
    """
    if old and [k.lower() for k in old] != [k.lower() for k in new]:
        raise MetadataError(
            f"The keys of {table} are {list(old)} and can't become {list(new)}.",
            file=METADATA,
            hint="restore keyColumns, or delete the table's folder and publish it anew.",
        )


def declare_keys(storage: Storage, table: TableName, keys: tuple[str, ...]) -> TableMetadata:
    """Writes the keys into `_metadata.json`, leaving its other fields as they are.

    Raises:
        MetadataError: other keys are declared already, or these make no sense.
    """
    path = f"{table.folder}/{METADATA}"
    fresh = to_json({"keyColumns": list(keys)})
    TableMetadata.parse(fresh)
    if keys and storage.create(path, fresh):
        return TableMetadata(keys)
    found = read_metadata(storage, table)
    if not keys or [k.lower() for k in found.keys] == [k.lower() for k in keys]:
        return found
    check_keys_kept(table, found.keys, keys)
    document = json.loads(storage.read(path).decode("utf-8-sig"))
    kept = {name: value for name, value in document.items() if name.lower() != "keycolumns"}
    storage.write(path, to_json({"keyColumns": list(keys)} | kept))
    return TableMetadata(keys, found.upsert_by_default)
