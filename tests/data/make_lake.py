"""Makes a lake with every kind of file that this code keeps, for the tests of later code.

    .venv/bin/python tests/data/make_lake.py lake_0_2

It writes `NAME.tar.gz`, the lake, and `NAME.json`, what this code reads from it, beside this file,
and adds a line to the README there. Lakes that were made earlier stay as they are: each of them is
a promise. The archive's bytes depend on the lake alone; the lake has new ids each time.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "lib"), str(HERE.parent)]

from helpers.old_lake import DATA, KEEP, MTIME, RETENTION, YEARS, with_spark, without_spark  # noqa: E402
from mirrorlake import Lake, MirrorOptions  # noqa: E402 - the path is set first
from mirrorlake.mirror.options import Step  # noqa: E402
from mirrorlake.partitioning.operation import Step as PartitionStep  # noqa: E402

MARKER = "__rowMarker__"
LONG = f"interval {YEARS} days"
# Versions are read for as long as the tests run; Delta's own default is a week.
LASTING = {RETENTION: LONG, "delta.logRetentionDuration": LONG}
BOUNDS: dict[str, Any] = {
    "log_retention_days": YEARS,
    "feed_retention_days": YEARS,
    "compact_after": 6,
    **KEEP,
}
START = datetime(2024, 3, 1, tzinfo=timezone.utc)
MOMENT = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc)
PLACES = ["north", "south", "east"]


class Killed(BaseException):
    """Not an Exception, so that nothing on the way takes it for a table's failure."""


def killer(step: Enum) -> Callable[[Any, Any], None]:
    """Ends a piece of work as a kill would, right after one of its steps."""

    def kill(_table: Any, done: Any) -> None:
        if done is step:
            raise Killed

    return kill


def killed(work: Callable[[], Any]) -> None:
    """Runs something that is to be killed."""
    try:
        work()
    except Killed:
        return
    raise AssertionError("nothing killed it")


class Maker:
    """Fills one lake, part by part; the parts build upon each other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lake = Lake(root)

    def zone(self, table: str) -> Path:
        folder = Path(self.lake.landing_zone) / table
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def put(self, table: str, name: str, data: Any) -> None:
        """A file as a publisher of another make would leave it."""
        path = self.zone(table) / (f"{int(name):020d}.parquet" if name.isdigit() else name)
        if isinstance(data, bytes):
            path.write_bytes(data)
        else:
            pq.write_table(pa.Table.from_pylist(data) if isinstance(data, list) else data, path)

    def metadata(self, table: str, **document: Any) -> None:
        path = self.zone(table) / "_metadata.json"
        path.write_text(json.dumps(document), encoding="utf-8")

    def mirror(self, table: str | None = None, **more: Any) -> None:
        report = self.lake.mirror(table, options=MirrorOptions(**(BOUNDS | more)))
        assert not report.failed, report.failed

    def kill_mirror(self, table: str, step: Step, **more: Any) -> None:
        options = MirrorOptions(**(BOUNDS | more))
        killed(lambda: self.lake.mirror(table, options=options, on_step=killer(step)))

    def sql(self, text: str) -> None:
        self.lake.spark.sql(text)

    def make(self) -> None:
        self.publish_first()
        self.change()
        self.follow_folders()
        self.pass_over()
        self.read_feeds()
        self.write_own()
        self.partition()
        self.frame()
        self.leave_work()

    def publish_first(self) -> None:
        """Tables as applications make them, applied in the first cycle."""
        lake = self.lake
        rows = [{"id": n, "item": f"item {n}", "place": PLACES[n % 3], "n": n} for n in range(6)]
        lake.publisher("inventory", keys=["id"]).write(rows)
        lake.publisher("places", keys=["place"]).write(
            [{"place": place, "open": place != "east"} for place in PLACES]
        )
        lake.publisher("shop.orders", keys=["id"]).write(
            [{"id": n, "amount": n * 1.5, "at": START + timedelta(hours=n)} for n in range(4)]
        )
        lake.publisher("events").write([{"what": "opened", "at": START}])
        odd = [{"the id": n, "net weight (kg)": n / 4, "ä;b": str(n)} for n in range(3)]
        lake.publisher("odd names", keys=["the id"]).write(odd)
        for table in ("shops", "stock", "gone", "paused", "reseeded", "reloaded", "resting",
                      "planned", "halfway", "untracked", "own past", "waiting"):  # fmt: skip
            more = {"net weight": 1.0} if table == "resting" else {}
            lake.publisher(table, keys=["id"]).write(
                [{"id": n, "v": f"{table} {n}", **more} for n in (1, 2, 3)]
            )
        text = {"fileFormat": "CSV", "FileFormatTypeProperties": {"ColumnSeparator": ";"}}
        columns = [{"Name": "id", "DataType": "Int32"}, {"Name": "price", "DataType": "Double"},
                   {"Name": "note", "DataType": "String"}]  # fmt: skip
        for table in ("prices", "planned csv"):
            self.metadata(table, keyColumns=["id"], SchemaDefinition={"Columns": columns}, **text)
            self.put(table, f"{1:020d}.csv", b'id;price;note\r\n1;9.5;"a; b"\r\n2;;plain\r\n')
        lake.publisher("late keys").write([{"id": 1, "v": "first"}, {"id": 2, "v": "second"}])
        self.metadata("widened", keyColumns=["id"])
        self.put("widened", "1", pa.table({"id": pa.array([1], pa.int32()), "n": [1]}))
        by_time = "LastUpdateTimeFileDetection"
        self.metadata("by time", keyColumns=["id"], fileDetectionStrategy=by_time)
        for hour, name in enumerate(("b.parquet", "a.parquet")):
            self.put("by time", name, [{"id": 1, "v": name}, {"id": hour + 2, "v": name}])
            moment = (START + timedelta(hours=hour)).timestamp()
            os.utime(self.zone("by time") / name, (moment, moment))
        self.mirror()

    def change(self) -> None:
        """Several cycles of one table: each marker, a new column, a compaction, a checkpoint."""
        stock = self.lake.publisher("inventory")
        stock.update([{"id": 1, "item": "item one", "place": "north", "n": 10}])
        stock.delete([{"id": 2}])
        self.mirror()
        # As old as files are that a sweep moves on; without the state the next cycle sweeps.
        two_days_ago = time.time() - 2 * 86_400
        for path in (self.zone("inventory") / "_ProcessedFiles").iterdir():
            os.utime(path, (two_days_ago, two_days_ago))
        self.lake.status(rebuild=True)
        stock.upsert([{"id": 6, "item": "item 6", "place": "west", "n": 6, "colour": "red"}])
        self.mirror(keep_processed_days=7)
        assert list((self.zone("inventory") / "_FilesReadyToDelete").iterdir())
        for n in range(7, 11):
            stock.insert([{"id": n, "item": f"item {n}", "place": PLACES[n % 3], "n": n}])
            self.mirror("inventory")
        self.lake.operations.replay("inventory", 3, 4)
        self.lake.publisher("events").write([{"what": "closed", "at": START + timedelta(1)}])
        self.mirror()
        csv = b"id;price;note\n2;2.5;changed\n3;3.25;\n"
        self.put("prices", f"{2:020d}.csv", csv)
        self.mirror("prices")
        self.put("widened", "2", [{"id": 2**40, "n": 2}])
        self.mirror("widened", widen=True)
        self.lake.publisher("late keys", keys=["id"]).upsert([{"id": 1, "v": "changed"}])
        self.mirror("late keys")
        self.lake.table("own past").restore(1, apply=True)
        self.lake.publisher("own past").delete([{"id": 1}])
        self.mirror("own past")
        self.lake.table("untracked").row_tracking.disable(apply=True)
        self.lake.table("shops").optimize.vorder()

    def follow_folders(self) -> None:
        """A folder renamed, one made again, one deleted, one with other columns killed halfway."""
        zone = Path(self.lake.landing_zone)
        (zone / "shops").rename(zone / "branches")
        for table in ("stock", "gone", "resting"):
            shutil.rmtree(zone / table)
        self.lake.publisher("stock", keys=["code"]).write([{"code": "x", "n": 1}])
        self.lake.publisher("resting", keys=["id"]).write([{"id": 7, "v": "another life"}])
        self.lake.operations.pause("resting")
        self.mirror()
        self.lake.operations.resume("resting")
        self.lake.publisher("branches").upsert([{"id": 2, "v": "moved"}])
        self.mirror("branches")

    def pass_over(self) -> None:
        """Bad rows and a bad file in quarantine, a number skipped, one waited for."""
        self.metadata("dirty", keyColumns=["id"])
        self.put("dirty", "1", [
            {"id": 1, "v": "good", MARKER: 0},
            {"id": None, "v": "no key", MARKER: 4},
            {"id": 2, "v": "no such marker", MARKER: 3},
        ])  # fmt: skip
        self.mirror("dirty", on_error="skip-row")
        self.put("dirty", "2", b"no Parquet at all")
        self.put("dirty", "3", [{"id": 3, "v": "good"}])
        self.mirror("dirty", on_error="skip-file")
        self.metadata("skipped", keyColumns=["id"])
        self.put("skipped", "1", [{"id": 1}])
        self.put("skipped", "3", [{"id": 3}])
        self.lake.operations.skip("skipped", 2, apply=True)
        self.mirror("skipped")
        self.metadata("shop.schema/returns", keyColumns=["id"])
        self.put("shop.schema/returns", "1", [{"id": 1}])
        self.mirror("shop.returns")
        self.lake.operations.skip("shop.returns", 2, apply=True)

    def read_feeds(self) -> None:
        """What follows other tables: views, an archive, dimensions, a consumer, diagnostics."""
        lake = self.lake
        lake.views.create(
            "by_place",
            "SELECT place, count(*) AS items, sum(n) AS total, avg(n) AS mean"
            " FROM inventory GROUP BY place",
        )
        lake.views.create(
            "dbo.with_place",
            "SELECT i.id, i.item, p.open FROM inventory i JOIN places p ON i.place = p.place",
        )
        lake.views.create("most", "SELECT place, max(n) AS most FROM inventory GROUP BY place")
        lake.archive("inventory", "kept.inventory")
        lake.update_dimension("inventory", "dimension_1")
        lake.update_dimension("inventory", "dimension_2", stored_as=2)
        cursor = lake.table("inventory").changes.cursor("reporting")
        cursor.commit(cursor.read(end=4))
        other = lake.table("shop.orders").changes.cursor("reporting")
        other.commit(other.read())
        lake.publisher("inventory").upsert(
            [{"id": 3, "item": "item three", "place": "south", "n": 30, "colour": "blue"}]
        )
        self.mirror("inventory")
        lake.views.refresh("by_place", how="incremental")
        lake.views.refresh("dbo.with_place", how="incremental")
        lake.archive("inventory", "kept.inventory")
        lake.update_dimension("inventory", "dimension_2", stored_as=2)
        lake.table("inventory").row_tracking.history(key=3).events.collect()
        lake.table("shop.orders").analyze().save(["Columns"], at=MOMENT)

    def write_own(self) -> None:
        """Tables that no publisher feeds."""
        lake = self.lake
        raw = lake.write("raw", [{"id": n, "v": str(n)} for n in range(3)], properties=LASTING
                         | {"delta.enableRowTracking": "false"})  # fmt: skip
        raw.row_tracking.enable()
        lake.write("raw", [{"id": 3, "v": "3"}])
        vectors = lake.write(
            "vectors",
            lake.spark.range(40).selectExpr("id", "id % 4 AS k").coalesce(1),
            properties=LASTING | {"delta.enableDeletionVectors": "true"},
        )
        self.sql(f"DELETE FROM {vectors.sql_name} WHERE id IN (3, 17)")
        rows = lake.spark.range(60).selectExpr("id", "id % 5 AS k", "'x' || id % 3 AS v")
        lake.write("ordered", rows, vorder=True)
        swept = lake.write("swept", [{"id": 1}], properties=LASTING)
        lake.write("swept", [{"id": 2}], mode="overwrite")
        lake.write("swept", [{"id": 3}])
        swept.vacuum(retention_hours=0, feed_hours=0, allow_short=True, apply=True)
        lake.create_table("made", {"id": "INT", "v": "STRING"}, keys=["id"])
        days = [{"id": n, "day": f"2024-03-0{n % 2 + 1}"} for n in range(4)]
        lake.write("by day", days, partition_by=["day"], properties=LASTING)

    def measures(self, start: int, count: int) -> Any:
        text = (
            "id", "CASE WHEN id % 41 <> 0 THEN 'k' || id * 7919 % 12 END AS k",
            f"timestampadd(MINUTE, id * 7919 % 2880, TIMESTAMP '{START:%Y-%m-%d %H:%M:%S}') AS at",
        )  # fmt: skip
        return self.lake.spark.range(start, start + count).selectExpr(*text).coalesce(1)

    def partition(self) -> None:
        """Policies: one with work done, cut off and waiting, one with nothing left, one deleted."""
        lake = self.lake
        hashed = {"ColumnName": "k", "Kind": "Hash", "Properties": {"MaxPartitionCount": 2}}
        ranged = {
            "ColumnName": "at",
            "Kind": "UniformRange",
            "Properties": {"RangeSize": "1.00:00:00", "Reference": "1970-01-01T00:00:00"},
        }
        past = {"EffectiveDateTime": "2000-01-01"}
        hot = f"{YEARS}.00:00:00"
        readings = lake.write("readings", self.measures(0, 60), properties=LASTING).partitioning
        readings.set({"PartitionKeys": [hashed], **past}, hot=hot)
        readings.alter({"MaxRowCountPerOperation": 1000})
        lake.table("raw").partitioning.set({"PartitionKeys": [{**hashed, "ColumnName": "v"}]})
        lake.table("raw").partitioning.delete()
        report = lake.partitioning.run()
        assert report.operations == 1, report
        measures = lake.write("measures", self.measures(0, 80), properties=LASTING).partitioning
        measures.set({"PartitionKeys": [hashed, ranged], **past}, hot=hot, bucket_column="bucket")
        assert measures.operate() is not None
        lake.write("measures", self.measures(80, 40))
        killed(lambda: measures.operate(on_step=killer(PartitionStep.RECORDED)))

    def frame(self) -> None:
        """A frame that another replaced, one of older versions, one released."""
        lake = self.lake
        for gone in (21, 22):
            lake.frames.create(
                "sales", ["inventory", "shop.orders", "vectors"], owner="controlling",
                expires_in=None,
            )  # fmt: skip
            self.sql(f"DELETE FROM {lake.table('vectors').sql_name} WHERE id = {gone}")
        lake.frames.create("old", ["places"], owner="controlling", expires_in=None)
        lake.frames.release("old")

    def leave_work(self) -> None:
        """What the next cycle finds: files, plans, a table to be taken back, wishes."""
        lake = self.lake
        lake.publisher("inventory").upsert([{"id": 4, "item": "late", "place": "east", "n": 40}])
        lake.publisher("inventory").delete([{"id": 9}])
        lake.publisher("places").manifest(
            [{"place": place, "open": place != "east"} for place in PLACES]
        )
        lake.publisher("events").manifest([{"what": "opened", "at": START}])
        lake.publisher("shop.orders").write([{"id": 4, "amount": 6.0, "at": START, MARKER: 0}])
        lake.publisher("shop.orders").manifest(
            [{"id": n, "amount": n * 1.5, "at": START} for n in range(5)]
        )
        lake.operations.pause("paused")
        lake.publisher("paused").upsert([{"id": 2, "v": "after the pause"}])
        self.put("waiting", "3", [{"id": 3, "v": "behind a gap", MARKER: 4}])
        self.put("shop.schema/returns", "3", [{"id": 3}])
        self.put("skipped", "4", [{"id": 4}])
        self.put("by time", "0.parquet", [{"id": 9, "v": "0.parquet"}])
        lake.publisher("new", keys=["id"]).write([{"id": 1}])
        lake.operations.reseed("reseeded", apply=True)
        load = self.root.parent / "load.parquet"
        pq.write_table(pa.table({"id": [1, 9], "v": ["loaded", "loaded"]}), load)
        lake.publisher("reloaded").upsert([{"id": 5, "v": "set aside"}])
        lake.operations.reseed("reloaded", [load], apply=True)
        self.put("planned", "2", [
            {"id": 1, "v": "planned", MARKER: 1},
            {"id": None, "v": "no key", MARKER: 4},
            {"id": 4, "v": "planned", MARKER: 0},
        ])  # fmt: skip
        self.kill_mirror("planned", Step.PLANNED, on_error="skip-row")
        self.put("planned", "3", [{"id": 5, "v": "after the plan", MARKER: 0}])
        self.put("planned csv", f"{2:020d}.csv", b"id;price;note\n7;1;\nx;1;bad\n")
        self.kill_mirror("planned csv", Step.QUARANTINED, on_error="skip-row")
        lake.publisher("halfway").insert([{"id": 4, "v": "applied, not moved"}])
        lake.publisher("halfway").insert([{"id": 5, "v": "applied, not moved"}])
        self.kill_mirror("halfway", Step.COMMITTED)
        lake.publisher("halfway").insert([{"id": 6, "v": "not applied"}])
        self.kill_mirror("resting", Step.COMMITTED)
        assert not (self.root / "Tables/gone").exists()


def pack(root: Path, target: Path) -> None:
    """Packs a lake so that the same files with the same times give the same bytes.

    Hadoop's own checksums stay out: they may always be missing. So do the names of machines.
    """
    with (
        target.open("wb") as sink,
        gzip.GzipFile("", "wb", 9, sink, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(root.rglob("*")):
            if path.name.startswith(".") and path.name.endswith(".crc"):
                continue
            if path.is_file() and path.name in ("mirror.lock", "lock"):
                continue
            info = tarfile.TarInfo(str(Path("lake") / path.relative_to(root)))
            moment = path.stat().st_mtime_ns
            info.pax_headers = {MTIME: f"{moment // 10**9}.{moment % 10**9:09d}"}
            if path.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
                continue
            info.mode, info.size = 0o644, path.stat().st_size
            with path.open("rb") as source:
                archive.addfile(info, source)


def main() -> None:
    (name,) = sys.argv[1:]
    target = DATA / f"{name}.tar.gz"
    if target.exists():
        raise SystemExit(f"{target} is there: a lake of before is never made again.")
    with tempfile.TemporaryDirectory(prefix="lake-of-before-") as folder:
        root = Path(folder) / "lake"
        maker = Maker(root)
        maker.make()
        # Read from a copy: some reading writes, and nothing is to be left of it.
        copy = Path(folder) / "read"
        read = Lake(shutil.copytree(root, copy))
        facts = without_spark(read) | with_spark(read)
        maker.lake.spark.stop()
        machine = socket.gethostname().encode()
        pack(root, target)
        with gzip.open(target) as packed:
            assert machine not in packed.read(), "the machine's name is in the archive"
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":"))
    (DATA / f"{name}.json").write_text(text.replace('],"', '],\n"') + "\n", encoding="utf-8")
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True
    ).stdout.strip()
    with (DATA / "README.md").open("a", encoding="utf-8") as readme:
        readme.write(f"- `{name}`: made by `make_lake.py` with the code of commit {commit[:12]}.\n")
    print(f"{target.name}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
