"""Keys of `forget`: parsing them on the command line, and finding them in a manifest."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from helpers.commits import write_lines
from mirrorlake import Publisher
from mirrorlake.errors import TracesLeftError, UsageError
from mirrorlake.landing import manifest, zone
from mirrorlake.mirror import forget
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage

ORDERS = TableName.parse("orders")


def test_either_part_may_have_equals_signs() -> None:
    columns = ["a", "a=b", "it's `odd`"]
    texts = ["A=x=y", "a=b=z", "it's `odd`="]
    assert forget.parse_key(texts[:1], columns) == {"a": "x=y"}
    assert forget.parse_key(texts, columns) == {"a": "x=y", "a=b": "z", "it's `odd`": ""}


@pytest.mark.parametrize("texts", [["b=1"], ["a"], ["a=1", "A=2"]])
def test_anything_else_is_wrong_use(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="COLUMN=VALUE"):
        forget.parse_key(texts, ["a"])


@pytest.mark.parametrize("content", [None, '{"fileExtension": "json"}'])
@pytest.mark.parametrize(("text", "is_found"), [("471", False), ("4711", True), ("7", False)])
def test_a_manifest_contains_only_the_keys_at_which_its_ranges_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    is_found: bool,
    content: str | None,
) -> None:
    monkeypatch.setattr(forget, "new_session", lambda spark: spark)
    storage, table = Storage(str(tmp_path)), TableName.parse("orders")
    ranges = (
        manifest.KeyRange(None, 7, "0047152c2cf4781b"),
        manifest.KeyRange("4711", 471, "0047152c2cf4781b"),
    )
    manifest.write_manifest(storage, table, manifest.Manifest(7, "ID", ("ID", "a471"), ranges))
    if content:
        storage.write(f"{table.folder}/_metadata.json", content.encode())
    spark: Any = None  # not used for files that are not Parquet
    key = (forget.KeyPart("id", "bigint", text),)
    found = forget.Tracer(spark, storage, table, key, "scratch").in_zone(
        [f"{table.folder}/{manifest.MANIFEST}"]
    )
    assert bool(found) == is_found


def test_logs_of_frames_lose_the_statistics_of_deleted_files(any_storage: Storage) -> None:
    log = "Files/_mirrorlake/frames/m/00000001/my people/table/_delta_log"
    adds = [
        {"path": f"file:/lake/Tables/{folder}/{name}.parquet", "stats": f"Ada in {folder} {name}"}
        for folder, name in (("my%20people", "a%20b"), ("my%20people", "gone"), ("other", "gone"))
    ]
    lines = [json.dumps({"metaData": {"id": "x"}}), *(json.dumps({"add": add}) for add in adds)]
    any_storage.write(f"{log}/{0:020}.json", "\n".join(lines).encode())
    any_storage.write(f"{log}/{0:020}.crc", b"Ada")
    any_storage.write("Tables/my people/a b.parquet", b"data")
    forget.strip_frames(any_storage, ["Tables/my people"])
    (left,) = any_storage.files_below(log)
    found = [json.loads(line) for line in any_storage.read(left).splitlines()]
    assert [one["add"].get("stats") for one in found[1:]] == [
        "Ada in my%20people a%20b", None, "Ada in other gone"
    ]  # fmt: skip


def test_a_published_file_without_the_rows_keeps_its_position(any_storage: Storage) -> None:
    """A source would publish all rows again without it; the whole command needs Spark."""
    table = TableName.parse("orders")
    publisher = Publisher(any_storage, table, keys=["id"])
    file = publisher.upsert([{"id": 1}, {"id": 2}], token="a", footer={"position": "7"}).file
    path = f"{table.folder}/{file}"
    before = zone.read_footer(any_storage, path)
    tracer: Any = SimpleNamespace(storage=any_storage, positions=lambda _: [0])
    any_storage.write(path, forget._without(tracer, path))
    assert zone.read_footer(any_storage, path) == before
    with any_storage.open(path) as source:
        assert pq.read_table(source).column("id").to_pylist() == [2]


def test_a_table_that_is_partitioned_by_its_key_is_refused(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files lack the key column, so no row would be found."""
    monkeypatch.setattr(forget, "new_session", lambda spark: spark)
    metadata = {"id": "x", "schemaString": '{"fields": []}', "partitionColumns": ["ID"]}
    write_lines(storage, 0, {"metaData": metadata})
    spark: Any = None  # the table is refused before a query
    key = (forget.KeyPart("id", "bigint", "7"),)
    tracer = forget.Tracer(spark, storage, TableName(None, "t"), key, "scratch")
    with pytest.raises(UsageError, match="t is partitioned by its key column 'id'"):
        tracer.in_table("Tables/t")


@pytest.mark.parametrize(
    ("name", "data", "count"),
    [
        ("1.parquet", b"PAR1 4711 is no text here", forget.UNSEARCHABLE),
        ("1.parquet", b"damaged", forget.UNSEARCHABLE),
        (".1.parquet.tmp", b"PAR1", forget.UNSEARCHABLE),
        ("1.json.gz", gzip.compress(b'{"id": 4711', mtime=0)[:-9], forget.UNSEARCHABLE),
        ("1.json.gz", gzip.compress(b'{"id": 4711', mtime=0), forget.UNKNOWN),
        ("1.json", b'{"id": 4711', forget.UNKNOWN),
        ("1.json", b'{"id": 471', None),
        ("1.parquet", b"", None),  # `forget` empties text that must stay
    ],
)
def test_a_file_that_cannot_be_read_is_not_searched_by_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, count: int | None
) -> None:
    monkeypatch.setattr(forget, "new_session", lambda spark: spark)
    storage = Storage(str(tmp_path))
    storage.write(f"{ORDERS.folder}/{name}", data)
    spark: Any = None  # not used for files that can't be read
    key = (forget.KeyPart("id", "bigint", "4711"),)
    found = forget.Tracer(spark, storage, ORDERS, key, "scratch").in_zone(
        [f"{ORDERS.folder}/{name}"]
    )
    assert found.get(f"{ORDERS.folder}/{name}") == count


def test_a_file_that_cannot_be_searched_is_reported_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forget, "new_session", lambda spark: spark)
    monkeypatch.setattr(forget, "read_key", lambda *_: (forget.KeyPart("id", "bigint", "5"),))
    storage, spark = Storage(str(tmp_path)), Any
    publisher = Publisher(storage, ORDERS, keys=["id"])
    file = f"{ORDERS.folder}/{publisher.upsert([{'id': 5}]).file}"
    storage.write(file, storage.read(file)[:-5])
    aside = f"{ORDERS.folder}/_ProcessedFiles/{file.rpartition('/')[2]}"
    storage.write(aside, b"PAR1 5")
    (*_, first, last) = forget.forget(spark, storage, ORDERS, {"id": 5}).traces
    action = "can't be searched: repair or delete it"
    assert {first, last} == {forget.Trace(path, 1, None, action) for path in (file, aside)}
    with pytest.raises(
        TracesLeftError, match=f"can't be searched: .*{aside}.*Hint: repair or delete"
    ):
        forget.forget(spark, storage, ORDERS, {"id": 5}, apply=True)
    assert storage.read(aside) == b"PAR1 5"
    assert storage.stat(file) is not None
    storage.delete(file)
    storage.delete(aside)
    assert forget.forget(spark, storage, ORDERS, {"id": 5}, apply=True).applied


def test_a_file_with_a_damaged_page_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count fails as Spark does; the other file is searched."""
    monkeypatch.setattr(forget, "new_session", lambda spark: spark)
    storage, spark = Storage(str(tmp_path)), Any
    publisher = Publisher(storage, ORDERS, keys=["ID"])
    whole, damaged = (
        f"{ORDERS.folder}/{publisher.upsert([{'ID': key, 'note': 'x'}]).file}" for key in (5, 6)
    )
    data = bytearray(storage.read(damaged))
    data[4:60] = bytes(56)
    storage.write(damaged, bytes(data))

    def count(_: Any, conditions: dict[str, Any]) -> dict[str, int]:
        if damaged in conditions:
            raise RuntimeError("a page is corrupt")
        return {whole: 1}

    monkeypatch.setattr(forget.Tracer, "_count", count)
    key = (forget.KeyPart("id", "bigint", "5"),)
    tracer = forget.Tracer(spark, storage, ORDERS, key, "scratch")
    assert tracer.in_zone([whole, damaged]) == {whole: 1, damaged: forget.UNSEARCHABLE}
    storage.write(damaged, storage.read(whole))
    with pytest.raises(RuntimeError, match="a page is corrupt"):
        tracer.in_zone([whole, damaged])
