"""How far a source is in a table: kept in the table's own files, so nothing can contradict them.

Each file's footer says up to where its rows go, and `_source.json` in the folder says where the
table began. The highest position found is where the source goes on. When a source publishes, and
when it confirms, is in `engine`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from mirrorlake.errors import MetadataError
from mirrorlake.landing.zone import footers_from_the_newest
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage, to_json
from mirrorlake.storage.kept import read_kept

FORMAT = 1
DOCUMENT = "_source.json"
FOOTER = "mirrorlake.source"


@dataclass(frozen=True, order=True)
class Position:
    """A place in a source's changes.

    Attributes:
        order: compares positions of one source and table; a higher one is later.
        facts: what the source needs to go on from there, as JSON.
    """

    order: tuple[int, ...]
    facts: dict[str, Any] = field(default_factory=dict, compare=False)

    def footer(self, source: str) -> dict[str, str]:
        """What a file carries whose rows end here."""
        document = {"source": source, "order": list(self.order), "facts": self.facts}
        return {FOOTER: json.dumps(document, ensure_ascii=False)}


@dataclass(frozen=True)
class Standing:
    """How a table stands with its source.

    Attributes:
        position: up to where its files go.
        stopped: why nothing more is published into it, and the fix; None while all is well.
    """

    position: Position
    stopped: str | None = None


def read_standing(storage: Storage, table: TableName, source: str) -> Standing | None:
    """How far a source is in a table; None if the table's first load is still to come.

    Raises:
        MetadataError: another source, or a publisher of its own, fills the folder.
    """
    path = f"{table.folder}/{DOCUMENT}"
    try:
        document = read_kept(storage, path, FORMAT)
    except (ValueError, TypeError) as error:
        raise MetadataError(
            f"{DOCUMENT} of {table} is broken.",
            file=DOCUMENT,
            hint="delete the table's folder; it is loaded again.",
        ) from error
    if document is None:
        if any(not name.startswith("_") for name in _files(storage, table)):
            raise MetadataError(
                f"The folder of {table} holds files of another publisher.",
                hint="choose another lake, or delete the folder.",
            )
        return None
    if document["source"] != source:
        raise MetadataError(
            f"{table} is filled by the source {document['source']}, not by {source}.",
            file=DOCUMENT,
            hint="name that source, or delete the table's folder; it is loaded again.",
        )
    position = Position(tuple(document["order"]), document["facts"])
    for footer in footers_from_the_newest(storage, table):
        carried = footer.get(FOOTER.encode())
        if carried is None:
            continue  # a replayed file, say
        found = json.loads(carried)
        if found["source"] == source:
            newest = Position(tuple(found["order"]), found["facts"])
            position = max(position, newest)
        break
    return Standing(position, document.get("stopped"))


def write_standing(
    storage: Storage, table: TableName, source: str, position: Position, stopped: str | None = None
) -> None:
    """Leaves in the folder where the table began, or why it is stopped."""
    storage.write(f"{table.folder}/{DOCUMENT}", standing_document(source, position, stopped))


def standing_document(source: str, position: Position, stopped: str | None = None) -> bytes:
    """The content of `_source.json`."""
    return to_json(
        {
            "format": FORMAT,
            "source": source,
            "order": list(position.order),
            "facts": position.facts,
            "stopped": stopped,
        }
    )


def _files(storage: Storage, table: TableName) -> list[str]:
    return [entry.name for entry in storage.list(table.folder).files]
