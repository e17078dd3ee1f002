"""Landing zones that tests write by hand, and what a mirror would leave of them."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.markers import MARKER as MARKER
from helpers.places import IDENTITY, METADATA, PARTNER_EVENTS, ZONE
from helpers.plans import plan_files
from mirrorlake.landing.metadata import Identity, ensure_identity, renew_identity
from mirrorlake.landing.publisher import Partner
from mirrorlake.mirror import applied_files
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Storage

T = TableName(None, "t")
KEYED = {"keyColumns": ["id"]}


class Zone:
    """A writer of one lake's landing zone; the default table is `t`."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.write(PARTNER_EVENTS, json.dumps(Partner().document()))

    def write(self, path: str, data: str | bytes) -> None:
        """Write a file by its path in the zone."""
        data = data.encode() if isinstance(data, str) else data
        self.storage.write(f"{ZONE}/{path}", data)

    def metadata(self, document: Any, table: TableName = T) -> None:
        self.write(f"{table.place}/{METADATA}", json.dumps(document))

    def put(self, name: int | str, data: Any = None, table: TableName = T, **options: Any) -> None:
        """Write a Parquet file by number or name; without data it has one valid row."""
        if data is None:
            data = {"id": [1], "item": ["a"]}
        rows = data if isinstance(data, pa.Table) else pa.table(data)
        path = f"{ZONE}/{table.place}/{file_name(name) if isinstance(name, int) else name}"
        with self.storage.open_writer(path) as sink:
            pq.write_table(rows, sink, **options)

    def age(self, name: str, days: float, table: TableName = T) -> None:
        """Set the age of a file in days; local lakes only."""
        path = self.local / table.folder / name
        moment = (datetime.now(timezone.utc) - timedelta(days=days)).timestamp()
        os.utime(path, (moment, moment))

    @property
    def local(self) -> Path:
        assert self.storage.local is not None
        return self.storage.local

    def identify(self, table: TableName = T) -> Identity:
        return ensure_identity(self.storage, table)

    def mirrored(
        self,
        columns: dict[str, str],
        *,
        last: int = 0,
        keys: tuple[str, ...] = ("id",),
        names: list[str] | None = None,
        table: TableName = T,
    ) -> Identity:
        """Write a Delta log as a mirror leaves it, and the plan of the files up to `last`."""
        identity = self.identify(table)
        if last:
            planned = names or [file_name(n) for n in range(1, last + 1)]
            plan_files(self.storage, identity, last - len(planned) + 1, planned)
        properties = {
            "mirrorlake.keys": json.dumps(list(keys)),
            "mirrorlake.incarnation": identity.incarnation,
        }
        self.delta_log(columns, properties, {identity.app_id: last} if last else {}, table)
        return identity

    def delta_log(
        self,
        columns: dict[str, str],
        properties: dict[str, str],
        txns: dict[str, int],
        table: TableName = T,
    ) -> None:
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in columns.items()
        ]
        schema = json.dumps({"type": "struct", "fields": fields})
        actions = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7}},
            {"metaData": {"id": "x", "schemaString": schema, "configuration": properties}},
            *({"txn": {"appId": app, "version": version}} for app, version in txns.items()),
        ]
        lines = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
        path = f"{table.table_path}/_delta_log/{0:020d}.json"
        self.storage.write(path, lines.encode())

    def move_to_processed(self, *numbers: int, table: TableName = T) -> None:
        for number in numbers:
            name = file_name(number)
            target = f"{table.folder}/_ProcessedFiles/{name}"
            assert self.storage.rename(f"{table.folder}/{name}", target)

    def identity_path(self, table: TableName = T) -> str:
        return f"{table.folder}/{IDENTITY}"


def interrupt_reseed(storage: Storage, *, is_renewed: bool) -> None:
    """Interrupt a reseed of the table `t` after it has renewed the identity, or before."""

    def fail(*of: Any) -> None:
        if is_renewed:
            renew_identity(*of)
        raise OSError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applied_files, "renew_identity", fail)
        with pytest.raises(OSError, match="killed"):
            applied_files.reseed(storage, T, apply=True)
