"""What one does with a lake, on S3: run as a process of its own, prints what it saw as JSON."""

from __future__ import annotations

import json
import sys

from mirrorlake import Lake


def rows(lake: Lake) -> list[list[object]]:
    found = lake.sql("SELECT id, n FROM items ORDER BY id").collect()
    return [list(row) for row in found]


def work(root: str) -> dict[str, object]:
    lake = Lake(root)
    items = lake.publisher("items", keys=["id"])
    items.upsert([{"id": one, "n": 0} for one in range(5)])
    first = lake.mirror()
    items.upsert([{"id": 1, "n": 1}])
    items.delete([{"id": 4}])
    lake.mirror()
    seen: dict[str, object] = {"errors": [t.error for t in first.tables], "rows": rows(lake)}
    table = lake.table("items")
    seen["at 1"] = table.read(version=1).count()
    table.optimize.compact()
    lake.storage.delete_folder("Files/LandingZone/items")
    seen["dropped"] = list(lake.mirror().dropped)
    seen["tables"] = [str(name) for name in lake.tables()]
    lake.operations.undrop("items")
    seen["back"] = rows(lake)
    items = lake.publisher("items", keys=["id"])
    items.upsert([{"id": 2, "n": 2}])
    seen["after"] = [table.error for table in lake.mirror().tables]
    seen["last"] = rows(lake)
    return seen


def append(root: str, writer: int, count: int) -> dict[str, object]:
    lake = Lake(root)
    path = lake.storage.path("Tables/shared")
    lake.spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{path}` (w INT, n INT) USING delta")
    done = 0
    for number in range(count):
        lake.spark.sql(f"INSERT INTO delta.`{path}` VALUES ({writer}, {number})")
        done += 1
    return {"done": done}


def count(root: str) -> dict[str, object]:
    lake = Lake(root)
    path = lake.storage.path("Tables/shared")
    (row,) = lake.spark.sql(f"SELECT count(*), count(DISTINCT w, n) FROM delta.`{path}`").collect()
    return {"rows": row[0], "distinct": row[1]}


if __name__ == "__main__":
    what, at, *numbers = sys.argv[1:]
    found = {"work": work, "append": append, "count": count}[what](at, *map(int, numbers))
    print(json.dumps(found, default=str))
