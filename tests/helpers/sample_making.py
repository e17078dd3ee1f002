"""Create a sample that uses every way to write to a lake."""

from __future__ import annotations

from mirrorlake_lab import open_sample, seal_sample


def make(root: str) -> None:
    """Create and seal the sample."""
    made = ["t", "direct", "own", "sums", "ordered"]
    lake = open_sample(root, fresh=True, tables=made)
    lake.publisher("t", keys=["id"]).upsert([{"id": 1, "n": 1}])
    assert not lake.mirror().failed
    frame = lake.spark.range(1000).selectExpr("id", "id % 3 AS n").repartition(8)
    frame.write.format("delta").save(lake.storage.path("Tables/direct"))
    lake.write("own", frame)
    lake.sql("DELETE FROM own WHERE id < 7")
    lake.views.create("sums", "SELECT n, count(*) AS c FROM own GROUP BY n")
    lake.frames.create("model", ["own"], owner="me", expires_in=1)
    lake.table("own").optimize.vorder()
    lake.write("ordered", frame, vorder=True)
    seal_sample(lake)
