"""Sample lakes: open and clear them without ever touching other data, and create the sample lake.

A notebook that creates a sample calls `open_sample` first and `seal_sample` last. The marker
`Files/_mirrorlake/sample.json` lists the sample's files with their SHA-256. `open_sample` refuses a
lake with any other file, except derived ones (status, locks, staged copies).

Until the sample is sealed, the marker has the state `making` and the names of the sample's tables.
If the process was killed, the files in these tables and in the lake's kept state belong to the
sample as well. A published file belongs to it only if its footer has the sample's stamp, which the
publishers of `SampleLake` write, or if its name was declared. The marker is only compared with
files that a walk over the lake finds: its names are never used as paths.

`make_sample` creates the lake to which the tools' default parameters refer; the command is
`./mirrorlake sample ROOT`. Its tables:

- `flights`: published and mirrored month by month, one version each. A frame of it and the view
  `delays` were created in September and not updated since.
- `stock`: its second file is missing, so the third one waits.
- `orders`: two rows of its second file are in the quarantine; its third file was published after
  the last mirror cycle.
- `readings`: written by Spark; its change feed was off for the first two versions.
- `visits`: 60 small files, and a partitioning policy whose operations have not run.
- `parts`: one file of 1,100 row groups, more than the smallest capacities allow.

The tool `publish` publishes `Files/incoming/stock.csv` by default.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake.errors import SampleError, UsageError
from mirrorlake.lake import Lake
from mirrorlake.landing.check import file_hash
from mirrorlake.landing.zone import read_footer
from mirrorlake.names import (
    MONITORING,
    PARTNER_EVENTS,
    PROCESSED,
    READY_TO_DELETE,
    STATE,
    ZONE,
    TableName,
    as_table,
)
from mirrorlake.names import TABLES as TABLES_FOLDER
from mirrorlake.spark.session import get_spark
from mirrorlake.storage.files import Storage
from mirrorlake.storage.paths import lake_path
from mirrorlake_lab.samples import flights as source

if TYPE_CHECKING:
    import pandas as pd


FORMAT: Final = 2
MARKER: Final = f"{STATE}/sample.json"
STAMP: Final = "mirrorlake.sample"
_SHARE = r"(-\d+-of-\d+)?"  # of one shard of several mirrors
_DERIVED: Final = re.compile(
    rf"({MONITORING}/(replicator|tables)\.json|{STATE}/(state{_SHARE}|sample)\.json"
    rf"|{STATE}/mirror{_SHARE}\.lock|{STATE}/partitioning/.+/lock|{STATE}/(staged|copies|forgetting|row-files)/.+"
    rf"|{STATE}/feeds/.+/archive-[^/]+/checkpoint-\d+/.+)"
    r"(#\d+)?"  # the name that obstore gives a file until it is complete
)
_RUN_LEASE: Final = re.compile(rf"{STATE}/plans/[^/]+\.lease(#\d+)?")
_MOVED = re.compile(rf"/({PROCESSED}|{READY_TO_DELETE})/")
_HINT = "choose another root, or remove that lake yourself if you don't need it."
_log = logging.getLogger("mirrorlake.lab.samples.lake")


class SampleLake(Lake):
    """A sample lake until it is sealed; its publishers stamp the files that they publish.

    Args:
        root: a path or URI.
        tables: the sample's tables.
        writes: files that are written without a publisher, relative to the landing zone or, outside
            it, to the lake.
    """

    def __init__(self, root: str, tables: Sequence[str], writes: Sequence[str]) -> None:
        super().__init__(root)
        self.making = uuid.uuid4().hex
        self._declared = {"tables": list(tables), "writes": list(writes)}

    def write_marker(self, state: str, files: dict[str, str]) -> None:
        """Write the marker: the state, `making` or `sealed`, and the sample's files."""
        document = {"format": FORMAT, "id": self.making, "state": state}
        self.storage.write_json(MARKER, document | self._declared | {"files": files})

    @property
    def published_footer(self) -> dict[str, str]:
        """The sample's stamp, which the footers of its published files have."""
        return {STAMP: self.making}


def open_sample(
    root: str, *, tables: Sequence[str], fresh: bool = False, writes: Sequence[str] = ()
) -> SampleLake:
    """Open a sample lake to create or extend it; starts no Spark.

    Args:
        root: a path or URI; a relative path starts from `MIRRORLAKE_HOME`, or from the project.
        tables: all tables of the sample: `table`, `schema.table`, or `schema.*`.
        fresh: first remove the files of an earlier sample.
        writes: files that are written without a publisher, such as
            `stock/00000000000000000005.parquet` in the landing zone, or `Files/incoming/stock.csv`
            elsewhere.

    Returns:
        The lake. Call `seal_sample` when the sample is complete.

    Raises:
        SampleError: the lake contains other files; nothing was changed.

    Example:
        >>> import tempfile
        >>> lake = open_sample(tempfile.mkdtemp(), fresh=True, tables=["t"])
        >>> lake.publisher("t", keys=["id"]).upsert([{"id": 1}]).rows
        1
        >>> seal_sample(lake)
    """
    lake = SampleLake(lake_path(root), tables, writes)
    storage = lake.storage
    found = _walk(storage)
    marker = _read_marker(storage)
    if marker is None:  # a process was killed while it wrote the first marker
        found = [path for path in found if not re.fullmatch(rf"{MARKER}#\d+", path)]
    if marker is None and found:
        raise SampleError(
            f"{storage.root} is not a sample: it contains {_listed(found)}.", hint=_HINT
        )
    made, foreign = _classify(storage, found, marker or {})
    if foreign:
        raise SampleError(
            f"{storage.root} is a sample, but it contains other files: {_listed(foreign)}.",
            hint=_HINT,
        )
    lake.write_marker("making", made)
    if fresh:
        _remove(storage, [path for path in found if path != MARKER])
        lake.write_marker("making", {})
    return lake


def seal_sample(lake: Lake) -> None:
    """Complete a sample: every later change of the lake counts as foreign.

    Foreign files in the lake are logged and not added to the sample, so the next `open_sample`
    refuses the lake.

    Args:
        lake: the lake that `open_sample` returned.

    Raises:
        UsageError: the lake was not opened by `open_sample`, or is sealed already.
    """
    marker = _read_marker(lake.storage) or {}
    is_open = marker.get("state") == "making"
    if not isinstance(lake, SampleLake) or not is_open or marker["id"] != lake.making:
        raise UsageError(f"{lake} was not opened as a sample.", hint="open it with open_sample.")
    made, foreign = _classify(lake.storage, _walk(lake.storage), marker)
    lake.write_marker("sealed", made)
    if foreign:
        _log.warning(
            f"{lake.storage.root} contains files that are not the sample's: {_listed(foreign)}."
        )


def _read_marker(storage: Storage) -> dict[str, Any] | None:
    """Return a lake's marker, or None if it has none.

    Raises:
        SampleError: the marker can't be read.
    """
    if storage.local is not None:
        marker = storage.local / MARKER
        if any(path.is_symlink() for path in (marker, *list(marker.parents)[:3])):
            return None
    try:
        document = storage.read_json(MARKER)
        if document is None:
            return None
        if document["format"] != FORMAT or document["state"] not in ("making", "sealed"):
            raise ValueError(f"format {document['format']}, state {document['state']}")
        texts = [document["id"], *document["tables"], *document["writes"]]
        texts += [*document["files"], *document["files"].values()]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a value is not a text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SampleError(
            f"The sample's marker {MARKER} in {storage.root} can't be read: {error}.",
            hint="choose another root, or remove that lake yourself.",
        ) from error
    return dict(document)


def _walk(storage: Storage) -> list[str]:
    """Return all files of a lake, and symbolic links without following them.

    The lease of the run that creates the sample is left out, because the run removes it itself.
    """
    if storage.local is None:
        found = list(storage.files_below(""))
    else:
        found = sorted(
            str((Path(folder) / name).relative_to(storage.local))
            for folder, folders, files in os.walk(storage.local)
            for name in [*files, *(f for f in folders if (Path(folder) / f).is_symlink())]
        )
    return [path for path in found if not _RUN_LEASE.fullmatch(path)]


def _classify(
    storage: Storage, found: Iterable[str], marker: dict[str, Any]
) -> tuple[dict[str, str], list[str]]:
    """Return the sample's files with their SHA-256, and the foreign files."""
    known = {(_MOVED.sub("/", path), digest) for path, digest in marker.get("files", {}).items()}
    making = list(_places(marker)) if marker.get("state") == "making" else []
    made: dict[str, str] = {}
    foreign = []
    for path in found:
        if storage.local is not None and (storage.local / path).is_symlink():
            foreign.append(path)
        elif not _DERIVED.fullmatch(path):
            digest = file_hash(storage, path)
            place = _MOVED.sub("/", path)
            if (place, digest) in known or _belongs_to_sample(storage, path, place, marker, making):
                made[path] = digest
            else:
                foreign.append(path)
    return made, foreign


def _places(marker: dict[str, Any]) -> Iterator[str]:
    """Yield the prefixes of the paths that an unsealed sample may write to."""
    yield f"{STATE}/"
    yield f"{ZONE}/{PARTNER_EVENTS}"
    for text in marker["tables"]:
        schema, star, _ = text.partition(".*")
        name = TableName(schema, "a") if star else as_table(text)
        for folder in (name.table_path, name.folder):
            yield f"{folder.rpartition('/')[0] if star else folder}/"


def _belongs_to_sample(
    storage: Storage, path: str, place: str, marker: dict[str, Any], making: Sequence[str]
) -> bool:
    if making and path in marker["writes"]:
        return True
    if not any(path.startswith(where) for where in making):
        return False
    name = path.rpartition("/")[2]
    if not path.startswith(f"{ZONE}/") or name.startswith(("_", ".")):
        return True
    if any(_MOVED.sub("/", listed) == place for listed in marker["files"]):
        return False  # the file has changed since it was listed
    if place.removeprefix(f"{ZONE}/") in marker["writes"]:
        return True
    stamp = read_footer(storage, path).get(STAMP.encode(), b"").decode()
    return bool(stamp == marker["id"])


def _remove(storage: Storage, paths: Iterable[str]) -> None:
    """Remove files that were found in the lake, and the folders that become empty."""
    for path in paths:
        if storage.local is None:
            storage.delete(path)
            continue
        file = storage.local / path  # obstore refuses some names
        file.unlink(missing_ok=True)
        for folder in file.parents:
            if folder == storage.local or any(folder.iterdir()):
                break
            folder.rmdir()


def _listed(paths: Iterable[str]) -> str:
    found = [path.encode(errors="backslashreplace").decode() for path in sorted(paths)]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more


MONTHS: Final = 12
EVERY: Final = 60  # keeps about 5,600 flights
FRAMED: Final = 9  # the month after which the frame and the view are created
ROW_GROUPS: Final = 1100  # the smallest capacities allow 1,000
INCOMING: Final = "Files/incoming/stock.csv"
VIEW: Final = (
    "SELECT carrier, count(*) AS flights, avg(arr_delay) AS delay FROM flights"
    " WHERE arr_delay IS NOT NULL GROUP BY carrier"
)
POLICY: Final = {
    "PartitionKeys": [
        {
            "ColumnName": "visitor",
            "Kind": "Hash",
            "Properties": {
                "Function": "XxHash64",
                "MaxPartitionCount": 4,
                "Seed": 1,
                "PartitionAssignmentMode": "Uniform",
            },
        }
    ]
}
TABLES: Final = ("flights", "stock", "orders", "readings", "visits", "parts", "delays")


def make_sample(root: str, *, on_step: Callable[[str], None] = lambda _: None) -> SampleLake:
    """Create the sample lake; an earlier one at the same root is removed first.

    Args:
        root: an absent or empty folder, or a sample lake. A relative path starts from
            `MIRRORLAKE_HOME`, or from the project.
        on_step: called with a line of text before each step.

    Returns:
        The lake.

    Raises:
        SampleError: the lake contains other files; nothing was changed.

    Example:
        >>> make_sample("lakes/sample")  # doctest: +SKIP
    """
    by_hand = [f"{table}/{number:020}.parquet" for table, number in (("stock", 3), ("orders", 2))]
    lake = open_sample(root, fresh=True, tables=TABLES, writes=[*by_hand, INCOMING])
    # Spark mostly waits for its one planning thread, so independent work runs beside it.
    with ThreadPoolExecutor(1) as beside:
        published = beside.submit(_publish_first, lake)
        on_step("small tables")
        get_spark("small")  # returns the running session if there is one
        flights = published.result()
        lake.mirror(on_error="skip-row")
        others = beside.submit(_write_others, lake)
        for month in range(1, MONTHS + 1):
            on_step(f"flights, month {month} of {MONTHS}")
            changes = source.monthly_changes(flights, month)
            publisher = lake.publisher("flights", keys=source.KEYS["flights"])
            publisher.update(changes.updates)
            publisher.delete(changes.deletes)
            publisher.upsert(changes.upserts)
            lake.mirror("flights")
            if month == FRAMED:
                lake.frames.create("airline report", ["flights"], owner="sample", expires_in=None)
                lake.views.create("delays", VIEW)
        on_step("tables written by Spark")
        others.result()
    late = [{"order": n, "item": "screw", "n": n % 5} for n in range(96, 104)]
    lake.publisher("orders", keys=["order"]).upsert(late)
    seal_sample(lake)
    return lake


def _publish_first(lake: SampleLake) -> pd.DataFrame:
    """Publish what the first mirror cycle applies, and return the flights of the year."""
    items = [("bolt", 40), ("nut", 25), ("screw", 60)]
    stock = lake.publisher("stock", keys=["item"])
    stock.write([{"item": item, "n": n} for item, n in items])
    late = [{"item": "nut", "n": 20, "__rowMarker__": 4}]
    _write_file(lake, f"{ZONE}/stock/{3:020}.parquet", pa.Table.from_pylist(late))
    lake.storage.write(INCOMING, b"item,n\nwasher,80\nbolt,35\n")
    orders = lake.publisher("orders", keys=["order"])
    orders.write([{"order": n, "item": "bolt", "n": n % 7} for n in range(100)])
    invalid_rows = [
        {"order": 7, "item": "nut", "n": 12, "__rowMarker__": 4},
        {"order": None, "item": "hook", "n": 5, "__rowMarker__": 4},
        {"order": 9, "item": "screw", "n": 70, "__rowMarker__": 9},
    ]
    _write_file(lake, f"{ZONE}/orders/{2:020}.parquet", pa.Table.from_pylist(invalid_rows))
    flights = source.load_flights(every=EVERY)
    source.publish_schedule(lake, flights)
    return flights


def _write_others(lake: SampleLake) -> None:
    """Write the tables that no publisher feeds: readings, visits, parts."""
    path = lake.storage.path(f"{TABLES_FOLDER}/readings")
    for hour in range(2):
        rows = f"SELECT id AS sensor, {hour} AS hour, 20.0 + id % 5 AS degrees FROM range(50)"
        lake.spark.sql(rows).coalesce(1).write.format("delta").mode("append").save(path)
    readings = lake.table("readings")
    readings.changes.enable()
    lake.spark.sql(f"UPDATE {readings.sql_name} SET degrees = 19.5 WHERE sensor = 7")
    visits = "SELECT id AS visit, concat('visitor ', id % 211) AS visitor, id % 24 AS hour"
    lake.write("visits", lake.spark.sql(f"{visits} FROM range(6000)").repartition(60, "visit"))
    lake.table("visits").partitioning.set(POLICY)
    parts = pa.table({"part": pa.array(range(ROW_GROUPS)), "length": pa.array([5] * ROW_GROUPS)})
    folder = f"{TABLES_FOLDER}/parts"
    _write_file(lake, f"{folder}/part-00000.parquet", parts, row_group_size=1)
    lake.spark.sql(f"CONVERT TO DELTA parquet.`{lake.storage.path(folder)}`")


def _write_file(lake: SampleLake, path: str, rows: pa.Table, **options: int) -> None:
    with lake.storage.open_writer(path) as file:
        pq.write_table(rows, file, **options)
