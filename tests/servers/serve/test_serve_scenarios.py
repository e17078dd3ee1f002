"""Scenarios of publishers' own tests and samples, with their clients or their requests.

The numbers are those of the acceptance scenarios: 3 zero-byte files, 5 no partial data, 6 a large
CSV by blocks, 7 five files of a study, 9 three writers by time, 11 eight writers of ten files.
"""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from azure.storage.blob import BlobServiceClient

from helpers.landed import landed_rows
from helpers.model import TableModel
from helpers.places import ZONE
from helpers.serving import Lake, Token, number, parquet
from mirrorlake import Lake as PublicLake

KEYS = b'{"keyColumns": ["id"]}'
INSERT, DELETE, UPSERT = 0, 2, 4


def test_3_a_file_of_zero_bytes_takes_no_number(served: Lake) -> None:
    """A file that is created but not flushed does not use its number and causes no error."""
    name = f"t/{number(1)}"
    for _ in range(2):
        assert served.call("PUT", name, "resource=file").status_code == 201
        assert served.files() == []
        assert served.call("HEAD", name).headers["Content-Length"] == "0"
    assert served.put(name, parquet(id=[1])).status_code == 200
    assert served.files() == [name]


def test_5_nothing_partial_is_ever_listed(served: Lake) -> None:
    """One writer stops after its first block, another after an append; a third one completes."""
    body = parquet(id=list(range(1000)))
    blob = served.ready.blob
    query = "comp=block&blockid=MDAwMQ%3D%3D"
    half = body[: len(body) // 2]
    assert served.call("PUT", f"t/{number(1)}", query, data=half, base=blob).status_code == 201
    assert served.call("PUT", f"u/{number(1)}", "resource=file").status_code == 201
    appended = served.call("PATCH", f"u/{number(1)}", "action=append&position=0", data=half)
    assert appended.status_code == 202
    assert served.files() == []
    # What was appended is no Parquet file: flushed too early it is refused, not published.
    flush = f"action=flush&position={len(half)}"
    assert served.call("PATCH", f"u/{number(1)}", flush).status_code == 400
    assert served.files() == []
    assert served.put(f"t/{number(1)}", body).status_code == 200
    assert served.files() == [f"t/{number(1)}"]


def test_6_a_large_csv_by_blocks(served: Lake) -> None:
    """As a month of UK Price Paid: A are inserts, C upserts, D deletes, in their order."""
    chance, model = random.Random(6), TableModel(("id",))
    lines, counts = ["id,price,__rowMarker__"], Counter[int]()
    for place in range(9_425):
        marker = chance.choices([INSERT, UPSERT, DELETE], [90, 25, 18])[0]
        key = place if marker == INSERT else chance.randrange(place + 1)
        price = chance.randrange(1000)
        counts[marker] += 1
        lines.append(f"{key},{price},{marker}")
        model.apply(marker, {"id": key, "price": price})
    text = "\n".join(lines).encode() + b"\n"
    served.put("t/_metadata.json", KEYS)
    with (
        BlobServiceClient(
            served.ready.blob,
            credential=Token(served.ready.token),
            connection_verify=served.ready.ca,
            max_single_put_size=1024,
            max_block_size=32 << 10,
        ) as client,
        client.get_blob_client(
            served.ready.workspace, f"{served.item.id}/{ZONE}/t/{number(1, '.csv')}"
        ) as blob,
    ):
        blob.upload_blob(text, max_concurrency=4)
    path = f"{ZONE}/t/{number(1, '.csv')}"
    assert served.storage.read(path) == text
    (waiting,) = PublicLake(served.root).waiting("t").tables
    assert (waiting.applied_rows, waiting.error) == (sum(counts.values()), None)
    again, found = TableModel(("id",)), pacsv.read_csv(pa.BufferReader(text)).to_pylist()
    assert Counter(row["__rowMarker__"] for row in found) == counts
    for row in found:
        again.apply(row.pop("__rowMarker__"), row)
    assert again.bag(["id", "price"]) == model.bag(["id", "price"])


def test_7_the_five_files_of_a_study(served: Lake) -> None:
    """Load, insert, update, delete, and change a key."""
    served.put("employees/_metadata.json", b'{"keyColumns": ["EmployeeID"]}')
    for place, rows in enumerate(
        [
            [("E0001", "Redmond", None), ("E0002", "Seattle", None), ("E0003", "Bothell", None)],
            [("E0004", "Seattle", 0)],
            [("E0001", "Bellevue", 1), ("E0003", "Kirkland", 1)],
            [("E0002", None, 2)],
            [("E0001", None, 2), ("E0001_NEW", "Bellevue", 0)],
        ],
        start=1,
    ):
        columns: dict[str, Any] = {
            "EmployeeID": [key for key, _, _ in rows],
            "City": pa.array([city for _, city, _ in rows], pa.string()),
        }
        if rows[0][2] is not None:
            columns["__rowMarker__"] = [marker for _, _, marker in rows]
        name = f"employees/{number(place)}"
        # pyfabric's way: make, append, flush at the final name.
        assert served.put(name, parquet(**columns)).status_code == 200
    found = {row["EmployeeID"]: row["City"] for row in landed_rows(served.root, "employees")}
    assert found == {"E0001_NEW": "Bellevue", "E0003": "Kirkland", "E0004": "Seattle"}


def test_9_three_writers_by_time(served: Lake) -> None:
    """GUID names and upserts by default: each key ends with its writer's last value."""
    by_time = b'{"keyColumns": ["id"], "fileDetectionStrategy": "LastUpdateTimeFileDetection", '
    served.put("hr/_metadata.json", by_time + b'"isUpsertDefaultRowMarker": true}')
    population: dict[int, str] = {}

    def write(writer: int) -> None:
        chance = random.Random(writer)
        for batch in range(6):
            keys = [writer * 100 + chance.randrange(20) for _ in range(3)]
            rows = dict.fromkeys(keys, f"w{writer} b{batch}")
            name = f"hr/{chance.getrandbits(128):032x}.parquet"
            body = parquet(id=list(rows), word=list(rows.values()))
            assert served.put(name, body).status_code == 200
            population.update(rows)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    folder = served.root / ZONE / "hr"
    files = sorted(folder.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    assert len(files) == 18
    model = TableModel(("id",))
    for path in files:  # the mirror's order
        for row in pa.parquet.read_table(path).to_pylist():
            model.apply(UPSERT, row)
    assert {key: rows[0]["word"] for (key,), rows in model.rows.items() if rows} == population


@pytest.mark.long  # `test_many_publishers_lose_nothing` has fewer requests
def test_11_eight_writers_of_ten_files(served: Lake) -> None:
    """The benchmark's client lists, and tries the next number if its rename is refused."""
    served.put("t/_metadata.json", KEYS)

    def write(writer: int) -> None:
        for batch in range(10):
            staged = f"t/_Temp/_temp_{writer}_{batch}.parquet"
            body = parquet(id=[writer * 10 + batch], __rowMarker__=[0])
            assert served.put(staged, body).status_code == 200
            done = 409
            while done == 409:
                names = [name for name in served.files("t") if name[:20].isdigit()]
                after = max((int(name[:20]) for name in names), default=0)
                done = served.rename(staged, f"t/{number(after + 1)}").status_code
            assert done == 201

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert sorted(row["id"] for row in landed_rows(served.root, "t")) == list(range(80))
