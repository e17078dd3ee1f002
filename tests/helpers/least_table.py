"""A minimal Delta table that a mirror accepts as its own: one commit and one file."""

from __future__ import annotations

import json
from typing import Any

from helpers.commits import write_lines
from mirrorlake.landing.metadata import Identity
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage


def make_table(storage: Storage, table: TableName, content: str = "rows", life: str = "1") -> None:
    """Write the table.

    Args:
        storage: the lake's files.
        table: the table's name.
        content: the content of its file.
        life: the incarnation in its commit.
    """
    properties = {"mirrorlake.keys": '["id"]', "mirrorlake.incarnation": life}
    metadata = {"configuration": properties, "schemaString": '{"fields": []}'}
    info = {"userMetadata": json.dumps({"incarnation": life})}
    lines = [json.dumps({"commitInfo": info}), json.dumps({"metaData": metadata})]
    log = f"{table.table_path}/_delta_log/{0:020d}.json"
    storage.write(log, "\n".join(lines).replace(": ", ":").encode())
    storage.write(f"{table.table_path}/part.parquet", content.encode())


def make_mirrored(storage: Storage, identity: Identity, note: dict[str, Any]) -> None:
    """Create a table with a commit of its mirror, which has the note."""
    make_table(storage, identity.table)
    write_lines(
        storage,
        1,
        {"commitInfo": {"userMetadata": json.dumps(note)}},
        {"txn": {"appId": identity.app_id, "version": note["last"]}},
        log=f"{identity.table.table_path}/_delta_log",
    )
