"""The sample lake: a year of flights by versions, and small tables with one trouble each.

What the tools' default parameters point to; `./mirrorlake sample ROOT` makes it. The tables:

- `flights`: published and mirrored month by month, one version each; a frame of it stands some
  months behind, and the view `delays` has not been refreshed since.
- `stock`: its second file never came, so the third waits.
- `orders`: two rows of its second file were bad and lie in quarantine; its third came after the
  last cycle of the mirror.
- `readings`: written by Spark alone; its change feed was off for its first two versions.
- `visits`: 60 small files, and a partitioning policy whose operations have not run.
- `parts`: one file of 1,100 row groups, more than the smallest capacities take.

`Files/incoming/stock.csv` is what the tool `publish` publishes by default.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake.names import TABLES as TABLES_FOLDER
from mirrorlake.names import ZONE
from mirrorlake.notices import noop
from mirrorlake.spark.session import get_spark
from mirrorlake_lab.samples import flights as source
from mirrorlake_lab.samples.lake import SampleLake, open_sample, seal_sample

if TYPE_CHECKING:
    import pandas as pd

MONTHS: Final = 12
EVERY: Final = 60  # about 5,600 flights
FRAMED: Final = 9  # the month after which the frame and the view are made
ROW_GROUPS: Final = 1100  # the smallest capacities take 1,000
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


def make_sample(root: str, *, on_step: Callable[[str], None] = noop) -> SampleLake:
    """Makes the sample lake; what earlier makings of it made is removed first.

    Args:
        root: an absent or empty folder, or a sample lake; see `lake_path`.
        on_step: called with a line of text before each step.

    Raises:
        SampleError: the lake holds something that no sample's making made; nothing was changed.

    Example:
        >>> make_sample("lakes/sample")  # doctest: +SKIP
    """
    by_hand = [f"{table}/{number:020}.parquet" for table, number in (("stock", 3), ("orders", 2))]
    lake = open_sample(root, fresh=True, tables=TABLES, writes=[*by_hand, INCOMING])
    # Spark mostly waits for one thread that plans: what is independent goes on meanwhile.
    with ThreadPoolExecutor(1) as beside:
        published = beside.submit(_publish_first, lake)
        on_step("small tables")
        get_spark("small")  # unless one is running
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
    """What the mirror's first cycle finds; returns the flights of the year."""
    items = [("bolt", 40), ("nut", 25), ("screw", 60)]
    stock = lake.publisher("stock", keys=["item"])
    stock.write([{"item": item, "n": n} for item, n in items])
    late = [{"item": "nut", "n": 20, "__rowMarker__": 4}]
    _write_file(lake, f"{ZONE}/stock/{3:020}.parquet", pa.Table.from_pylist(late))
    lake.storage.write(INCOMING, b"item,n\nwasher,80\nbolt,35\n")
    orders = lake.publisher("orders", keys=["order"])
    orders.write([{"order": n, "item": "bolt", "n": n % 7} for n in range(100)])
    careless = [
        {"order": 7, "item": "nut", "n": 12, "__rowMarker__": 4},
        {"order": None, "item": "hook", "n": 5, "__rowMarker__": 4},
        {"order": 9, "item": "screw", "n": 70, "__rowMarker__": 9},
    ]
    _write_file(lake, f"{ZONE}/orders/{2:020}.parquet", pa.Table.from_pylist(careless))
    flights = source.load_flights(every=EVERY)
    source.publish_schedule(lake, flights)
    return flights


def _write_others(lake: SampleLake) -> None:
    """The tables that Spark writes: readings, visits, parts."""
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
