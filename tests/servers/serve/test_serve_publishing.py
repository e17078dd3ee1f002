"""Writes: published atomically at flush, each number once, invalid files refused."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.pages import blocks, in_shell
from helpers.places import ZONE
from helpers.serving import Lake, new_lake, number, parquet, serving, session_of
from mirrorlake import Lake as PublicLake
from mirrorlake_serve import DEFINITION, Item, Workspace, files, zone

KEYS = b'{"keyColumns": ["id"]}'
BY_TIME = b'{"keyColumns": ["id"], "fileDetectionStrategy": "LastUpdateTimeFileDetection"}'
ONE, TWO = parquet(id=[1]), parquet(id=[2])


def test_nothing_is_there_before_the_flush(served: Lake) -> None:
    name = f"t/{number(1)}"
    for _ in range(2):  # the first attempt is not completed
        assert served.call("PUT", name, "resource=file").status_code == 201
        assert served.call("PATCH", name, "action=append&position=0", data=ONE).status_code == 202
        assert served.files("t") == []
        assert served.call("HEAD", name).headers["Content-Length"] == "0"
    assert served.call("PATCH", name, f"action=flush&position={len(ONE)}").status_code == 200
    assert served.files("t") == [number(1)]
    # The response was lost; the client flushes again.
    assert served.call("PATCH", name, f"action=flush&position={len(ONE)}").status_code == 200


def test_the_pages_requests_with_curl(served: Lake, tmp_path: Path) -> None:
    (block,) = blocks("serve", "sh")
    block = block.replace(
        "https://localhost:8443/WORKSPACE/ITEM", f"{served.ready.dfs}/{served.name}"
    )
    (tmp_path / "orders.parquet").write_bytes(ONE)
    trust = {"SSL_CERT_FILE": served.ready.ca}
    in_shell(block.replace("TOKEN", served.ready.token), tmp_path, trust)
    assert sorted(served.files("orders")) == [number(1), "_metadata.json"]
    assert (served.root / ZONE / "orders" / number(1)).read_bytes() == ONE


def test_a_flush_before_all_bytes_came_is_refused(served: Lake) -> None:
    name = f"t/{number(1)}"
    served.call("PUT", name, "resource=file")
    served.call("PATCH", name, "action=append&position=5", data=ONE)
    found = served.call("PATCH", name, f"action=flush&position={len(ONE) + 5}")
    assert (found.status_code, found.headers["x-ms-error-code"]) == (400, "InvalidFlushPosition")
    assert served.files("t") == []


def test_a_taken_number_is_409_and_the_same_bytes_are_accepted(served: Lake) -> None:
    assert served.put(f"t/{number(1)}", ONE).status_code == 200
    assert served.put(f"t/{number(1)}", ONE).status_code == 200
    taken = served.put(f"t/{number(1)}", TWO)
    assert (taken.status_code, taken.headers["x-ms-error-code"]) == (409, "PathAlreadyExists")
    served.put("t/_same", ONE)
    served.put("t/_other", TWO)
    assert served.rename("t/_same", f"t/{number(1)}").status_code == 201
    assert served.rename("t/_other", f"t/{number(1)}").status_code == 409
    assert served.put(f"t/{number(1, '.csv')}", b"id\n1\n").status_code == 409
    assert served.call("GET", f"t/{number(1)}").content == ONE
    assert served.files("t") == [number(1), "_other"]


@pytest.mark.parametrize("folder", ["_ProcessedFiles", "_FilesReadyToDelete"])
def test_a_number_that_was_applied_and_moved_away_is_taken(served: Lake, folder: str) -> None:
    for n in (1, 2):
        served.put(f"t/{number(n)}", parquet(id=[n]))
    place = f"{ZONE}/t"
    assert served.storage.rename(f"{place}/{number(1)}", f"{place}/{folder}/{number(1)}")
    assert served.put(f"t/{number(1)}", TWO).status_code == 409
    assert served.put(f"t/{number(1)}", ONE).status_code == 200
    assert served.files("t") == sorted([number(2), f"{folder}/{number(1)}"])
    # The publisher's janitor deletes applied files; the numbers continue.
    assert served.call("DELETE", f"t/{folder}", "recursive=true").status_code == 200
    assert served.call("DELETE", f"t/{folder}", "recursive=true").status_code == 404
    assert served.put(f"t/{number(3)}", parquet(id=[3])).status_code == 200


def test_a_rename_whose_answer_was_lost_is_recognised(served: Lake) -> None:
    served.put("t/_a", ONE)
    for _ in range(3):
        assert served.rename("t/_a", f"t/{number(1)}").status_code == 201
    assert served.rename("t/_a", f"t/{number(2)}").status_code == 404
    # Two uploads had the same name, so the server can't know whose response was lost.
    served.put("t/_b", ONE)
    served.put("t/_b", TWO)
    assert served.rename("t/_b", f"t/{number(2)}").status_code == 201
    assert served.rename("t/_b", f"t/{number(2)}").status_code == 404


def test_receipts_outlive_the_server(tmp_path: Path) -> None:
    first = files.Receipts(tmp_path / "renames.jsonl")
    first.uploaded("a")
    first.renaming("a", "b")
    again = files.Receipts(tmp_path / "renames.jsonl")
    assert again.is_retry("a", "b")
    again.uploaded("a")
    assert not files.Receipts(tmp_path / "renames.jsonl").is_retry("a", "b")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (parquet(id=[1, 2], __rowMarker__=[4, 3]), ["Unknown row marker 3", "row 2", "Hint"]),
        (parquet(id=[1], __rowMarker__=["4"]), ["__rowMarker__ has the type string"]),
        (parquet(name=["x"]), ["Key column 'id' is missing", "column id"]),
        (parquet(id=[None, 1]), ["Key column 'id' is NULL", "row 1"]),
        (parquet(id=["text"]), ["Column 'id' is string, but the table has long"]),
        (b"not Parquet at all", ["The file is not a readable Parquet file"]),
    ],
    ids=["marker", "marker type", "no key", "NULL key", "type", "no Parquet"],
)
def test_a_mistake_is_in_the_answer_and_not_in_the_zone(
    served: Lake, body: bytes, words: list[str]
) -> None:
    assert served.put("t/_metadata.json", KEYS).status_code == 200
    assert served.put(f"t/{number(1)}", ONE).status_code == 200
    refused = served.put(f"t/{number(2)}", body)
    assert (refused.status_code, refused.headers["x-ms-error-code"]) == (400, "InvalidInput")
    for word in (*words, number(2)):
        assert word in refused.json()["error"]["message"]
    # The flush of the hidden file is refused already, before its rename.
    assert served.put(f"t/_{number(2)}", body).status_code == 400
    served.put("t/_else", body)
    assert served.rename("t/_else", f"t/{number(2)}").status_code == 400
    blob = served.call("PUT", f"t/{number(2)}", data=body, base=served.ready.blob)
    assert blob.status_code == 400
    assert served.files("t") == [number(1), "_else", "_metadata.json"]
    assert PublicLake(served.root).lint().errors == ()


def test_a_wider_type_is_accepted_where_the_mirror_widens(served: Lake, tmp_path: Path) -> None:
    narrow, wide = parquet(n=pa.array([1], pa.int32())), parquet(n=[2**40])
    assert served.put(f"t/{number(1)}", narrow).status_code in (200, 201)
    refused = served.put(f"t/{number(2)}", wide)
    assert refused.status_code == 400
    assert "start the server with --widen" in refused.json()["error"]["message"]
    widening = Workspace(folder=str(tmp_path), widen=True)
    with serving(widening) as ready, session_of(ready) as session:
        lake = new_lake(widening, ready, session, "wide")
        for place, body in enumerate((narrow, narrow, wide), start=1):
            assert lake.put(f"t/{number(place)}", body).status_code in (200, 201)
        text = lake.put(f"t/{number(4)}", parquet(n=["x"])).json()["error"]["message"]
        assert "Column 'n' is string, but the table has long" in text


def test_the_mirrors_linter_says_the_same_of_what_was_put_there_by_hand(served: Lake) -> None:
    body = parquet(id=[1], __rowMarker__=[9])
    served.put("t/_metadata.json", KEYS)
    text = served.put(f"t/{number(1)}", body).json()["error"]["message"]
    (served.root / ZONE / "t" / number(1)).write_bytes(body)
    (found,) = PublicLake(served.root).lint().errors
    assert found.message.rstrip(".") in text
    assert (found.rule, found.row) == ("marker-value", 1)


def test_a_gap_is_refused_and_named(served: Lake) -> None:
    served.put(f"t/{number(1)}", ONE)
    refused = served.put(f"t/{number(3)}", TWO)
    assert refused.status_code == 400
    assert f"the next file is {number(2)}" in refused.json()["error"]["message"]
    assert served.files("t") == [number(1)]


def test_files_that_overtake_each_other_wait(served: Lake) -> None:
    served.call("PUT", f"t/{number(1)}", "resource=file")
    served.call("PATCH", f"t/{number(1)}", "action=append&position=0", data=ONE)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(served.put, f"t/{number(2)}", TWO)
        threading.Event().wait(0.3)
        assert served.files("t") == []
        flush = f"action=flush&position={len(ONE)}"
        assert served.call("PATCH", f"t/{number(1)}", flush).status_code == 200
        assert late.result().status_code == 200
    assert served.files("t") == [number(1), number(2)]


def test_a_table_without_metadata_is_a_warning(served: Lake) -> None:
    done = served.put(f"t/{number(1)}", parquet(id=[1], __rowMarker__=[4]))
    assert done.status_code == 200
    assert "_metadata.json" in done.headers["Warning"]
    assert "key columns" in done.headers["Warning"]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"keyColumns": "id"}',
        b'{"keyColumns": ["other"]}',
        b'{"keyColumns": ["id"], "isPartitionEnabled": true}',
    ],
)
def test_metadata_that_makes_no_sense_or_takes_keys_back_is_refused(
    served: Lake, body: bytes
) -> None:
    served.put("t/_metadata.json", KEYS)
    assert served.put(f"t/{number(1)}", parquet(id=[1])).status_code == 200
    refused = served.put("t/_metadata.json", body)
    assert refused.status_code == 400
    assert "[file _metadata.json]" in refused.json()["error"]["message"]
    assert served.call("GET", "t/_metadata.json").content == KEYS


def test_keys_of_a_table_without_files_can_be_corrected(served: Lake) -> None:
    served.put("t/_metadata.json", b'{"keyColumns": ["nokey"]}')
    assert served.put(f"t/{number(1)}", parquet(id=[1])).status_code == 400
    assert served.put("t/_metadata.json", KEYS).status_code == 200
    assert served.put(f"t/{number(1)}", parquet(id=[1])).status_code == 200


def test_files_in_partition_folders_are_refused(served: Lake) -> None:
    """Hidden files, and folders without a partition's name, are accepted."""
    for place in ("t/Region=eu", "s.schema/t/Region=eu/City=x"):
        path = f"{place}/{number(1)}"
        dfs = served.put(path, ONE)
        blob = served.call("PUT", path, data=ONE, base=served.ready.blob)
        served.put(f"{place}/_{number(1)}", ONE)
        renamed = served.rename(f"{place}/_{number(1)}", path)
        for refused in (dfs, blob, renamed):
            assert (refused.status_code, refused.headers["x-ms-error-code"]) == (
                400,
                "InvalidInput",
            )
            assert "the table's own folder" in refused.text
        assert served.files(place) == [f"_{number(1)}"]
    for place in ("t/_Temp=1/", "a=b/", "a=b/parts/", "s.schema/a=b/", ""):
        assert served.put(f"{place}{number(1)}", ONE).status_code == 200


def test_files_by_time_have_any_name_and_later_ones_are_younger(served: Lake) -> None:
    served.put("t/_metadata.json", BY_TIME)
    served.put("t/_z.csv.temp", b"id\n1\n")
    served.put("t/a.csv", b"id\n2\n")
    assert served.rename("t/_z.csv.temp", "t/z.csv").status_code == 201
    assert served.rename("t/_z.csv.temp", "t/z.csv").status_code == 201
    assert served.put("t/a.csv", b"id\n3\n").status_code == 409
    assert served.put("t/b.csv", b"id,__rowMarker__\n3,8\n").status_code == 400
    times = {e.name: e.modified for e in served.storage.list(f"{ZONE}/t").files}
    assert times["a.csv"] < times["z.csv"]


@pytest.mark.parametrize(
    "path",
    ["Tables/t/x", "Files/Monitoring/x", "Files/_mirrorlake/x", "Files/x", "Files/LandingZone"],
)
@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_only_the_zone_is_written_to(served: Lake, method: str, path: str) -> None:
    query = {"PUT": "?resource=file", "PATCH": "?action=append&position=0", "DELETE": ""}[method]
    for base in (served.ready.dfs, served.ready.blob):
        done = served.session.request(method, f"{base}/{served.name}/{path}{query}", data=b"x")
        assert done.status_code in (403, 409, 405), done.text
    assert not (served.root / "Files" / "x").exists()
    assert served.files() == []


def test_the_mirrors_identity_is_not_a_publishers_file(served: Lake) -> None:
    served.put("t/_x", b"x")
    assert served.call("PUT", "t/_mirrorlake.json", "resource=file").status_code == 403
    assert served.rename("t/_x", "t/_mirrorlake.json").status_code == 403


def test_a_table_is_removed_and_made_again(served: Lake) -> None:
    """Scenario 12: a reset after a long time without data."""
    served.put("t/_metadata.json", KEYS)
    served.put(f"t/{number(1)}", ONE)
    served.call("PUT", f"t/{number(2)}", "resource=file")
    assert served.call("DELETE", "t", "recursive=true").status_code == 200
    assert served.call("HEAD", "t").status_code == 404
    assert served.call("PATCH", f"t/{number(2)}", "action=flush&position=0").status_code == 404
    assert served.put("t/_metadata.json", KEYS).status_code == 200
    assert served.put(f"t/{number(1)}", TWO).status_code == 200


def test_a_file_that_is_bad_is_deleted_and_uploaded_again(served: Lake) -> None:
    served.put(f"t/{number(1)}", ONE)
    assert served.call("DELETE", f"t/{number(1)}").status_code == 200
    assert served.put(f"t/{number(1)}", TWO).status_code == 200


def test_folders_are_renamed_whole(served: Lake) -> None:
    served.put(f"t/{number(1)}", ONE)
    assert served.rename("t", "u").status_code == 201
    assert served.files() == [f"u/{number(1)}"]
    served.call("PUT", "v", "resource=directory")
    assert served.rename("u", "v").status_code == 409
    assert served.rename("u", "u/inside").status_code == 400


@pytest.mark.parametrize("publishers", [16])
def test_many_publishers_lose_nothing(served: Lake, publishers: int) -> None:
    """Scenario 11: list, take the next number, rename, and retry if the number is taken."""
    served.put("t/_metadata.json", KEYS)

    def publish(writer: int) -> None:
        for batch in range(5):
            body = parquet(id=[writer * 100 + batch])
            staged = f"t/_Temp/_{writer}_{batch}"
            assert served.put(staged, body).status_code == 200
            for _ in range(200):
                listed = served.call("GET", "t", "resource=filesystem&recursive=false").json()
                names = [p["name"].rpartition("/")[2] for p in listed["paths"]]
                taken = [int(name[:20]) for name in names if name[0].isdigit()]
                status = served.rename(staged, f"t/{number(max(taken, default=0) + 1)}").status_code
                if status == 201:
                    break
                assert status == 409
            else:
                pytest.fail("no number was free")

    with ThreadPoolExecutor(publishers) as pool:
        list(pool.map(publish, range(publishers)))
    found = [name for name in served.files("t") if name[0].isdigit()]
    assert found == [number(n) for n in range(1, publishers * 5 + 1)]
    bodies = {(served.root / ZONE / "t" / name).read_bytes() for name in found}
    assert len(bodies) == publishers * 5


def test_uploads_that_are_never_flushed_go_after_a_while(tmp_path: Path) -> None:
    uploads = files.Uploads(tmp_path, seconds=0.0)
    old = uploads.create("a")
    uploads.create("b")
    assert uploads.get("a") is None
    assert not old.data.exists()
    files.Uploads(tmp_path, seconds=0.0).load()
    assert list(tmp_path.iterdir()) == []


def test_what_was_appended_outlives_the_server(tmp_path: Path) -> None:
    first = files.Uploads(tmp_path)
    upload = first.create("a")
    upload.data.write_bytes(b"0123456789")
    upload.add(0, 10)
    with open(upload.data.with_suffix(".jsonl"), "ab") as journal:
        journal.write(b'{"at": 10, "leng')  # killed while it was written
    (tmp_path / "x.part").write_bytes(b"a request that was cut")
    again = files.Uploads(tmp_path)
    again.load()
    found = again.get("a")
    assert found is not None
    assert (found.etag, found.size) == (upload.etag, 10)
    assert not (tmp_path / "x.part").exists()


def test_too_many_open_uploads_are_refused(tmp_path: Path) -> None:
    uploads = files.Uploads(tmp_path, most=2)
    for path in ("a", "b", "b"):
        uploads.create(path)
    with pytest.raises(Exception, match="2 uploads are open"):
        uploads.create("c")


def test_an_object_store_is_served_too(workspace: Workspace, served: Lake, tmp_path: Path) -> None:
    """The semantics are the same without folders and links."""
    bucket_zone = zone.LandingZone(PublicLake("memory:///").storage, tmp_path / "state")
    item = Item(
        "6f9619ff-8b86-d011-b42d-00c04fc964ff", "bucket", bucket_zone, definition=DEFINITION
    )
    workspace._items[item.id] = item
    try:
        bucket = Lake(served.ready, item, served.session)
        assert bucket.call("PUT", "t", "resource=directory").status_code == 201
        assert bucket.call("HEAD", "t").headers["x-ms-resource-type"] == "directory"
        assert bucket.put("t/_metadata.json", KEYS).status_code == 200
        assert bucket.put(f"t/{number(1)}", ONE).status_code == 200
        assert bucket.put(f"t/{number(1)}", ONE).status_code == 200
        assert bucket.put(f"t/{number(1)}", TWO).status_code == 409
        assert bucket.put("t/_2", parquet(id=[3], __rowMarker__=[3])).status_code == 200
        assert bucket.rename("t/_2", f"t/{number(2)}").status_code == 400
        bucket.put("t/_2", TWO)
        assert bucket.rename("t/_2", f"t/{number(2)}").status_code == 201
        assert bucket.call("GET", f"t/{number(2)}").content == TWO
        part = bucket.call("GET", f"t/{number(2)}", headers={"Range": "bytes=0-3"})
        assert (part.status_code, part.content) == (206, b"PAR1")
        listed = bucket.call("GET", "t", "resource=filesystem&recursive=true").json()["paths"]
        assert [p["name"].rpartition("/")[2] for p in listed] == [
            number(1), number(2), "_metadata.json",
        ]  # fmt: skip
        assert bucket.call("DELETE", "t", "recursive=true").status_code == 200
        assert bucket.call("HEAD", "t").status_code == 404
    finally:
        del workspace._items[item.id]


def test_monitoring_files_are_read(served: Lake) -> None:
    PublicLake(served.root)
    served.storage.write_json("Files/Monitoring/replicator.json", {"status": "Running"})
    address = f"{served.ready.dfs}/{served.name}/Files/Monitoring/replicator.json"
    found = served.session.get(address, headers={"x-ms-range": "bytes=0-33554431"})
    assert found.status_code == 206
    assert json.loads(found.content) == {"status": "Running"}
