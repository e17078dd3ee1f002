"""Which files of a sample its making made, and which it did not.

Accounted for is, in this order:

- what is only derived and made again at need: status, locks, staged copies, stream checkpoints;
- what the marker or the journal names, if its content is the one that they name;
- while a making has not ended, what Spark writes past the journal: in a Delta table every commit
  that carries the making's mark, and the data files and log files that Delta's writers leave around
  commits, by their names. A data file that no commit names is garbage to readers and to VACUUM.
  A folder without a log counts only if the making said that Spark writes that table. A frame's
  lists and logs go with its record.

Everything else is somebody else's, symbolic links included.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mirrorlake.errors import InvalidNameError
from mirrorlake.landing.check import file_hash
from mirrorlake.mirror.quarantine import QUARANTINE
from mirrorlake.names import MONITORING, STATE, TABLES, TableName
from mirrorlake.samples.marker import ANY, JOURNAL, MARKER, Known, Marker, place_of
from mirrorlake.spark.stamp import mark_of
from mirrorlake.storage import Storage

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_DERIVED: Final = re.compile(
    rf"{MONITORING}/(replicator|tables)\.json|{STATE}/(state|sample)\.jsonl?|{STATE}/mirror\.lock"
    rf"|{STATE}/partitioning/.+/lock|{STATE}/(staged|copies|forgetting|row-files)/.+"
    rf"|{STATE}/feeds/.+/archive-[^/]+/checkpoint-\d+/.+"
)
_DELTA: Final = re.compile(
    rf"(?P<table>{TABLES}/[^/]+(?:/[^/]+)?|{re.escape(QUARANTINE)}|{STATE}/dropped/.+/table)"
)
_COMMIT: Final = re.compile(r"\d{20}\.json")
_LOG_FILE: Final = re.compile(
    r"_last_(checkpoint|vacuum_info)(\..+\.tmp)?|\d{20}\.(crc|checkpoint\..+|\d{20}\.compacted\.json)|\d{20}\..+\.tmp"
    rf"|{_UUID}\.(parquet|json)"
)
_DATA_FILE: Final = re.compile(
    rf"((part|cdc)-\d{{5}}-.*{_UUID}.*\.parquet|deletion_vector_{_UUID}\.bin)"
)
_FRAME: Final = re.compile(
    rf"(?P<frame>{STATE}/frames/[^/]+/\d{{8}})/.+/"
    r"(files/(_SUCCESS|_temporary/.+|part-.+)|table/_delta_log/.+)"
)
_HADOOP = re.compile(r"\.{1,2}(.+?)(\.crc)?")
_CUT_OFF = re.compile(r"(.+)#\d+")  # how obstore calls a file until it is whole
_UNNAMED = re.compile(r"(.+)/_[0-9a-f]{32}")  # a file of an identity until it has its name


@dataclass(frozen=True)
class Contents:
    """What lies in a sample.

    Attributes:
        made: size in bytes and SHA-256 of what is accounted for, by path; derived files are not
            among them.
        derived: what can be made again, paths.
        foreign: what the sample's making did not make, paths.
    """

    made: dict[str, tuple[int, str]]
    derived: tuple[str, ...]
    foreign: tuple[str, ...]


def walk(storage: Storage) -> dict[str, int | None]:
    """All files of a lake with their sizes; None is a symbolic link, which is not followed."""
    if storage.local is not None:
        return dict(_walk_local(str(storage.local), ""))
    return dict(storage.sizes_below())


def _walk_local(folder: str, before: str) -> Iterator[tuple[str, int | None]]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = f"{before}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_local(entry.path, f"{path}/")
        else:
            plain = entry.is_file(follow_symlinks=False)
            yield path, entry.stat(follow_symlinks=False).st_size if plain else None


def look_into(storage: Storage, marker: Marker) -> Contents:
    """Tells a sample's own files from everybody else's; reads them all, changes nothing.

    Args:
        storage: the lake's files.
        marker: the sample's.
    """
    known = marker.known(storage)
    found = walk(storage)
    made: dict[str, tuple[int, str]] = {}
    derived, foreign = [], []
    logs = {path.partition("/_delta_log/")[0] for path in found if "/_delta_log/" in path}
    for path, size in found.items():
        whole = _CUT_OFF.fullmatch(path)
        if size is None:
            foreign.append(path)
        elif _DERIVED.fullmatch(path) or (whole and _is_cut_off(whole[1], known)):
            derived.append(path)
        else:
            sha256 = file_hash(storage, path)
            if _is_known(path, sha256, known) or (
                marker.state == "making" and _is_sparks(storage, path, marker, known, logs)
            ):
                made[path] = (size, sha256)
            else:
                foreign.append(path)
    return Contents(made, tuple(derived), tuple(foreign))


def _is_cut_off(path: str, known: Known) -> bool:
    return path in (MARKER, JOURNAL) or bool(_DERIVED.fullmatch(path)) or place_of(path) in known


def _is_known(path: str, sha256: str, known: Known) -> bool:
    contents = known.get(place_of(path), set())
    if sha256 in contents or ANY in contents:
        return True
    unnamed = _UNNAMED.fullmatch(path)
    return unnamed is not None and any(
        sha256 in some and place.rpartition("/")[0] == unnamed[1] for place, some in known.items()
    )


def _is_sparks(storage: Storage, path: str, marker: Marker, known: Known, logs: set[str]) -> bool:
    """Whether Spark wrote a file for the making that has not ended."""
    if frame := _FRAME.fullmatch(_visible(path)):
        record = f"{frame['frame']}.json"
        return storage.exists(record) and _is_known(record, file_hash(storage, record), known)
    folder, in_log, name = path.partition("/_delta_log/")
    if in_log:
        if not _DELTA.fullmatch(folder):
            return False
        if _COMMIT.fullmatch(name):
            return _mark_of_commit(storage, path) == marker.making
        plain = _visible(name).rpartition("/")[2]
        return bool(_LOG_FILE.fullmatch(plain) or _COMMIT.fullmatch(plain))
    outer = next((log for log in logs if path.startswith(f"{log}/")), None)
    if outer is None:
        places = (f"{_place(name)}/" for name in marker.tables)
        outer = next((place for place in places if path.startswith(place)), None)
    if outer is None or not _DELTA.fullmatch(outer.rstrip("/")):
        return False
    return bool(_DATA_FILE.fullmatch(_visible(path).rpartition("/")[2]))


def _visible(path: str) -> str:
    """What a file is called that Hadoop keeps a checksum of, or writes, under a hidden name."""
    folder, slash, name = path.rpartition("/")
    hidden = _HADOOP.fullmatch(name)
    return f"{folder}{slash}{hidden[1] if hidden else name}"


def _place(table: str) -> str:
    try:
        return TableName.parse(table).table_path
    except InvalidNameError:  # the marker was written by hand
        return MARKER


def _mark_of_commit(storage: Storage, path: str) -> str | None:
    for line in storage.read(path).splitlines():
        if line.startswith(b'{"commitInfo"'):
            try:
                return mark_of(json.loads(line)["commitInfo"].get("userMetadata"))
            except (ValueError, AttributeError):
                return None
    return None
