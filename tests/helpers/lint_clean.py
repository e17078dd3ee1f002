"""Zones without findings."""

from __future__ import annotations

import pyarrow as pa

from helpers.lint_case import BY_TIME, TYPED, UUID, keyed
from helpers.places import STATE, ZONE
from helpers.zones import KEYED, MARKER, Zone
from mirrorlake.names import TableName, file_name


def clean_plain(zone: Zone) -> None:
    zone.metadata(KEYED)
    zone.put(1)
    zone.put(2, {"id": [1, 2], "item": ["b", None], MARKER: [1, 4]})
    zone.put(3, {"id": [1], MARKER: [2]})  # a delete needs only its key
    zone.put(4, {"id": [3], "item": ["c"], "more": [1.5], MARKER: [0]})
    zone.write(f"t/_{UUID}.parquet", b"half a file")
    zone.write("t/.DS_Store", b"")


def clean_without_keys(zone: Zone) -> None:
    zone.put(1)
    zone.put(2, {"ID": [None], "item": ["a"], MARKER: [0]})


def clean_by_time(zone: Zone) -> None:
    zone.metadata(BY_TIME)
    for days, name in enumerate(("b.parquet", "a", "any name will do.parquet")):
        zone.put(name, {"id": [1], "item": ["a"], MARKER: [4]})
        zone.age(name, 9 - days)
    zone.mirrored({"id": "long", "item": "string"}, last=2, names=["b.parquet", "a"])


def clean_text(zone: Zone) -> None:
    zone.metadata(TYPED)
    zone.write("t/00000000000000000001.csv", f"id,n,{MARKER}\n1,2,4\n2,,1\n")


def clean_load_of_several_files(zone: Zone) -> None:
    """By their statistics, no key is in two files; a file without rows has no statistics."""
    keyed(zone, {"id": [1, 3]}, {"id": [4]}, {"id": [-2, 0]})
    zone.put(4, {"id": [3], MARKER: [0]})


def clean_declared(zone: Zone) -> None:
    zone.metadata(TYPED)


def clean_upserts_by_default(zone: Zone) -> None:
    zone.metadata(KEYED | {"isUpsertDefaultRowMarker": True, "isPartitionEnabled": False})
    zone.put(1)
    zone.put(2, {"id": [1, 2], "item": ["b", "c"], MARKER: pa.array([None, 2], pa.int8())})


def clean_mirrored(zone: Zone) -> None:
    """Write files applied up to 3, with 2 not moved because the mirror was killed."""
    clean_plain(zone)
    zone.put(2, {MARKER: [1, 4], "id": [1, 2]})  # applied files are not read again
    zone.mirrored({"id": "long", "item": "string"}, last=3)
    zone.move_to_processed(1)


def clean_mirrored_without_plans(zone: Zone) -> None:
    zone.put(2)
    zone.mirrored({"id": "long", "item": "string"}, last=2, keys=(), names=[file_name(2)])
    zone.storage.delete_folder(STATE)


def clean_renamed(zone: Zone) -> None:
    """Write a folder renamed since the last cycle; its table still has the old path."""
    old = TableName(None, "before")
    for number in (1, 2):
        zone.put(number, table=old)
    zone.mirrored({"id": "long", "item": "string"}, last=1, keys=(), table=old)
    (zone.local / old.folder).rename(zone.local / ZONE / "t")


def clean_recreated(zone: Zone) -> None:
    """Write a folder whose table belongs to an earlier folder with other columns and keys."""
    keyed(zone, None)
    zone.mirrored({"id": "string", "nr": "long"}, last=1, keys=("nr",))
    zone.storage.delete(zone.identity_path())


def clean_recreated_and_seen(zone: Zone) -> None:
    """Write a recreated folder that already has the mirror's new identity."""
    clean_recreated(zone)
    zone.identify()


def clean_keys_added(zone: Zone) -> None:
    keyed(zone, None)
    zone.mirrored({"id": "long", "item": "string"}, last=1, keys=())


def clean_odd_names(zone: Zone) -> None:
    for table in (
        TableName("a`b.c", "d e"), TableName(None, "Größe;--"), TableName("s", "t"),
        TableName(None, "console"), TableName(None, "COM10"), TableName(None, "x.con"),
    ):  # fmt: skip
        zone.metadata({"keyColumns": ["`'\""]}, table)
        zone.put(1, {"`'\"": [1], "a.b": [2], MARKER: [4]}, table)
    zone.write("_scratchPad/half.parquet", b"x")


def clean_nearly_reserved(zone: Zone) -> None:
    """Write columns whose names only begin with reserved ones."""
    names = ("_metadata_source", "_change_type_code", "_commit_version2", "_commit_timestamps")
    keyed(zone, {"id": [1], **{name: ["x"] for name in names}})


CLEAN = [make for name, make in sorted(globals().items()) if name.startswith("clean_")]
