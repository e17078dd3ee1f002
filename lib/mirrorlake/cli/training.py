"""The process whose loaded classes become Java's class archive.

`python -m mirrorlake.cli.training SCRATCH` runs it; see `mirrorlake.spark.java`.
"""

from __future__ import annotations

import sys
from typing import Any

from mirrorlake.lake import Lake


def train(scratch: str) -> None:
    """Mirror and query a small lake in a scratch folder, then wait for the JVM to end.

    The steps load the classes that the first minutes of real work need.
    """
    lake = Lake(f"{scratch}/lake")
    publisher = lake.publisher("training", keys=["id"])
    publisher.write([{"id": n, "word": "a", "amount": n / 2} for n in range(10)])
    lake.mirror()
    for change in (publisher.upsert, publisher.update, publisher.delete):
        change([{"id": 1, "word": "b", "amount": 1.0}])
        lake.mirror()
    lake.sql("SELECT word, sum(amount) AS s FROM training@v1 GROUP BY word ORDER BY s").toArrow()
    lake.sql("SELECT count(*) FROM training t JOIN training@v2 u ON t.id = u.id").collect()
    lake.spark.sql(f"DESCRIBE HISTORY {lake.table('training').sql_name}").toPandas()
    # The JVM writes the archive at its exit, so it must end by itself.
    gateway: Any = lake.spark.sparkContext._gateway
    lake.spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    train(sys.argv[1])
