"""A table's columns as Parquet names their leaves, beside the names that people know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mirrorlake.delta.snapshot import physical_name


@dataclass(frozen=True)
class Leaf:
    """One leaf of a schema.

    Attributes:
        physical: the path in the Parquet schema, joined by dots.
        name: the same with the names of the table.
        kind: Spark's type.
        parts: the way to it through structs, by the table's names; empty within lists and maps.
    """

    physical: str
    name: str
    kind: str
    parts: tuple[str, ...]


def leaves(metadata: dict[str, Any]) -> list[Leaf]:
    """The leaves of a Delta table's schema, in its order.

    Args:
        metadata: the log's `metaData`.
    """
    schema = json.loads(metadata["schemaString"])
    return list(_walk(schema, [], [], nested=False))


def _walk(kind: Any, physical: list[str], names: list[str], *, nested: bool) -> Iterator[Leaf]:
    if isinstance(kind, str):
        parts = () if nested else tuple(names)
        yield Leaf(".".join(physical), ".".join(names), kind, parts)
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            inside = physical_name(field)
            yield from _walk(
                field["type"], [*physical, inside], [*names, field["name"]], nested=nested
            )
    elif kind["type"] == "array":
        steps = ["list", "element"]
        yield from _walk(kind["elementType"], physical + steps, names + steps, nested=True)
    elif kind["type"] == "map":
        for side in ("key", "value"):
            steps = ["key_value", side]
            yield from _walk(kind[f"{side}Type"], physical + steps, names + steps, nested=True)
