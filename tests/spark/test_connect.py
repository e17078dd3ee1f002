"""The same code under Spark Connect, in a process of its own: publish, mirror, query, the past."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
from mirrorlake import Lake
from mirrorlake.spark.session import get_spark, launch_conf, prepare

conf = launch_conf("notebook")
master = conf.pop("spark.master")
os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join(
    f"--conf '{k}={v}'" for k, v in conf.items()
) + " pyspark-shell"
spark = prepare(SparkSession.builder.remote(master).getOrCreate())
lake = Lake(sys.argv[1], spark=spark)
publisher = lake.publisher("t", keys=["id"])
publisher.write([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
failed = [t.error for t in lake.mirror().failed]
publisher.upsert([{"id": 2, "v": "c", "w": 1.5}])
publisher.delete([{"id": 1}])
failed += [t.error for t in lake.mirror().failed]
now = [tuple(r) for r in lake.sql("SELECT * FROM t").collect()]
was = [tuple(r) for r in lake.sql("SELECT * FROM t@v1 ORDER BY id").collect()]
story = lake.table("t").biography(key=2).events.collect()
rows = [row["_row_id"] for row in lake.table("t").with_row_ids().collect()]
told = [(row["v"], row["_change_type"], row["_row_id"]) for row in story]
table = lake.table("t")
newest = table.reach().until
past = {
    "as_of": [row["v"] for row in table.as_of(version=1).sort("id").collect()],
    "moment": lake.sql(f"SELECT count(*) FROM t TIMESTAMP AS OF '{newest}'").first()[0],
    "framed": lake.frames.create("m", ["t"]).tables[0].rows,
}
publisher.upsert([{"id": 3, "v": "d", "w": 0.5}])
failed += [t.error for t in lake.mirror().failed]
(line,) = lake.frames.show("m")
(forecast,) = lake.frames.show("m", delete=("t", "id = 2"))
past["shown"] = [line.files_added, line.rows_added, line.files_preserved, forecast.rows_removed]
past["read"] = [row["id"] for row in lake.frames.read("m", "t").collect()]
past["asked"] = lake.sql("SELECT count(*) FROM t", frame="m").first()[0]
plan = table.vacuum(retention_hours=0, allow_short=True)
past["kept"] = [share.why for share in plan.kept]
past["released"] = lake.frames.release("m").state
answer = {"kind": type(spark).__module__, "failed": failed, "now": now, "was": was}
print(json.dumps(answer | {"told": told, "rows": rows, "past": past}))
"""


def test_connect(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "lake")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert "connect" in answer["kind"]
    assert answer["failed"] == []
    assert answer["now"] == [[2, "c", 1.5]]
    assert answer["was"] == [[1, "a"], [2, "b"]]
    (row_id,) = answer["rows"]
    assert answer["told"] == [
        ["b", "insert", row_id],
        ["b", "update_preimage", row_id],
        ["c", "update_postimage", row_id],
    ]
    assert answer["past"] == {
        "as_of": ["a", "b"],
        "moment": 1,
        "framed": 1,
        "shown": [1, 1, 1, 1],
        "read": [2],
        "asked": 1,
        "kept": ["newest version"],
        "released": "released",
    }
