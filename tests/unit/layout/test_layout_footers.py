"""Parquet footers of many files, read in step, against pyarrow's view of each file."""

from __future__ import annotations

import io
import json
from datetime import date, datetime, time
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.examples import examples
from mirrorlake.layout import footers, measures, thrift
from mirrorlake.storage.files import Storage


def parquet(table: pa.Table, **settings: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **settings)
    return sink.getvalue()


def tail(data: bytes) -> bytes:
    storage = Storage("memory:///")
    storage.write("t/f.parquet", data)
    stores = footers.Storages(Storage("memory:///"), "t")
    stores._own = storage
    found = stores.try_tail("f.parquet", len(data))
    assert isinstance(found, bytes)
    return found


def facts(*files: bytes) -> list[dict[str, Any]]:
    return both([tail(data) for data in files], [None] * len(files))


def both(tails: list[bytes | str], stats: list[str | None]) -> list[dict[str, Any]]:
    """Return the files' facts, with the chunks' facts in their row groups."""
    found: list[dict[str, Any]] = footers.footer_facts(tails).to_pylist()
    for file in found:
        for group in file["groups"] or []:
            group["chunks"] = []
    for row in footers.chunk_facts(tails, stats).to_pylist():
        group = found[row["file"]]["groups"][row["group"]]
        assert row["rows"] == group["rows"]
        group["chunks"].append(row["c"])
    return found


def test_dictionary_overflow_is_proven_not_guessed() -> None:
    wide = pa.table({"c": [f"a text that is long enough {i}" for i in range(20_000)]})
    narrow = pa.table({"c": ["x", "y"] * 10_000})
    settings = {"dictionary_pagesize_limit": 20_000, "data_page_size": 20_000}
    files = (parquet(wide, **settings), parquet(narrow, **settings),
             parquet(wide, use_dictionary=False))  # fmt: skip
    overflowing, fits, plain = (found["groups"][0]["chunks"][0] for found in facts(*files))
    # Both list a dictionary and a plain encoding; only the statistics distinguish them.
    assert "PLAIN" in overflowing["encodings"]
    assert "PLAIN" in fits["encodings"]
    assert (overflowing["overflow"], fits["overflow"], plain["overflow"]) == (True, False, None)
    assert fits["dict_bytes"] > 0
    assert plain["dict_bytes"] is None


def test_a_footer_larger_than_the_first_read() -> None:
    table = pa.table({f"column number {i}": [i] for i in range(3_000)})
    (found,) = facts(parquet(table))
    assert len(found["groups"][0]["chunks"]) == 3_000
    assert found["groups"][0]["chunks"][2_999]["minimum"] == "2999"


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no parquet at all", b"x" * 100 + b"\xff" * 4])
def test_a_file_that_is_not_parquet_has_a_problem(data: bytes, storage: Storage) -> None:
    storage.write("t/f", data)
    stores = footers.Storages(storage, "t")
    good = tail(parquet(pa.table({"a": [1]})))
    tails = [good, stores.try_tail("f", len(data)), stores.try_tail("gone", len(data)), good]
    first, bad, gone, last = both(tails, [None] * 4)
    assert bad["problem"].startswith("unreadable")
    assert gone["problem"] == "missing"
    assert bad["groups"] is bad["rows"] is gone["groups"] is None
    assert first == last
    assert (first["rows"], first["problem"]) == (1, None)


def test_only_the_end_of_a_remote_file_is_read() -> None:
    """Each file costs one request, without the 800 kB of rows before the footer."""
    rows = pa.table({"a": np.random.default_rng(1).integers(0, 2**60, 100_000)})
    data, asked = parquet(rows, use_dictionary=False), []

    class Ranges(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            start, end = self.headers["Range"].removeprefix("bytes=").split("-")
            asked.append((self.path, int(end) + 1 - int(start)))
            part = data[int(start) : int(end) + 1]
            self.send_response(206)
            self.send_header("Content-Length", str(len(part)))
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
            self.send_header("Last-Modified", self.date_time_string(0))
            self.end_headers()
            self.wfile.write(part)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        stores = footers.Storages(Storage("memory:///"), "t")
        tails = [stores.try_tail(f"{url}/{name}.parquet", len(data)) for name in "xy"]
        server.shutdown()
    assert [found["rows"] for found in footers.footer_facts(tails).to_pylist()] == [100_000] * 2
    assert asked == [("/x.parquet", 65_536), ("/y.parquet", 65_536)]


def test_a_clone_reads_the_other_tables_files(tmp_path: Path) -> None:
    stores = footers.Storages(Storage(tmp_path / "lake"), "Tables/t")
    for path in (f"{tmp_path}/b c.parquet", f"file:{tmp_path}/b c.parquet"):
        (tmp_path / "b c.parquet").write_bytes(b"x")
        storage, inner = stores.place(path)
        assert storage.read(inner) == b"x"
    storage, inner = stores.place("http://127.0.0.1:1/a/b.parquet")
    assert (storage.root, inner) == ("http://127.0.0.1:1", "a/b.parquet")
    assert stores.place("p=1/f")[1] == "Tables/t/p=1/f"
    assert stores.all_local(
        ["p=1/f", f"{tmp_path}/b", f"file:{tmp_path}/b", f"FILE://{tmp_path}/b"]
    )
    assert not stores.all_local(["p=1/f", "http://127.0.0.1:1/a/b.parquet"])
    assert not footers.Storages(Storage("memory:///"), "t").all_local(["f"])


def slow_look(data: bytes) -> dict[str, Any]:
    """Return one footer as pyarrow shows it, object by object."""
    metadata = pq.read_metadata(io.BytesIO(data))
    groups = []
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        chunks = [group.column(c) for c in range(group.num_columns)]
        groups.append(
            {
                "rows": group.num_rows,
                "compressed": sum(c.total_compressed_size for c in chunks),
                "uncompressed": sum(c.total_uncompressed_size for c in chunks),
                "chunks": [
                    {
                        "name": c.path_in_schema,
                        "physical": c.physical_type,
                        "codec": c.compression,
                        "compressed": c.total_compressed_size,
                        "uncompressed": c.total_uncompressed_size,
                        "has_dict": c.has_dictionary_page,
                        "dict_offset": c.dictionary_page_offset,
                        "value_count": c.num_values,
                        "nulls": c.statistics.null_count if c.statistics else None,
                        "encodings": ", ".join(sorted(set(c.encodings))),
                        "minimum": bool(c.statistics and c.statistics.has_min_max),
                    }
                    for c in chunks
                ],
            }
        )
    keys = metadata.metadata or {}
    return {
        "rows": metadata.num_rows,
        "created_by": metadata.created_by,
        "row_groups": metadata.num_row_groups,
        "open_vorder": keys[b"org.mirrorlake.vorder"].decode() if keys else None,
        "problem": None,
        "groups": groups,
    }


def same(found: Any, wanted: Any) -> None:
    """Assert that everything pyarrow shows is in what was found."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            if key == "minimum":
                assert (found[key] is not None) == value
            else:
                same(found[key], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    else:
        assert found == wanted


@st.composite
def some_file(draw: st.DrawFn) -> bytes:
    """Return a file that has or lacks columns, NULLs, statistics, keys and row groups."""
    count = draw(st.sampled_from([0, 1, 40, 300]))
    columns = {
        "a": pa.array([i % 7 for i in range(count)], pa.int32()),
        "b": pa.array([None] * count, pa.string()),
        "c.d": pa.array([f"text {i}" for i in range(count)]),
        "s": pa.array([{"x": [i], "y": 1.5} for i in range(count)],
                      pa.struct([("x", pa.list_(pa.int64())), ("y", pa.float64())])),
        "t": pa.array([0] * count, pa.timestamp("us")),
    }  # fmt: skip
    names = draw(st.lists(st.sampled_from(list(columns)), min_size=1, unique=True))
    keys = draw(st.sampled_from([None, {"org.mirrorlake.vorder": "ä"}]))
    return parquet(
        pa.table({name: columns[name] for name in names}).replace_schema_metadata(keys),
        store_schema=False,
        write_statistics=draw(st.sampled_from([True, False, names[:1]])),
        use_dictionary=draw(st.booleans()),
        row_group_size=draw(st.sampled_from([25, 1000])),
        use_deprecated_int96_timestamps=draw(st.booleans()),
        compression=draw(st.sampled_from(["none", "snappy", "zstd", "gzip"])),
    )


@examples(6)
@given(st.lists(some_file(), min_size=1, max_size=6), st.integers(1, 20), st.integers(0, 2**32))
def test_footers_read_in_step_equal_those_read_alone(
    files: list[bytes], times: int, seed: int
) -> None:
    """Files are alike and unlike, few and many, and one is truncated."""
    mixed = files * times
    np.random.default_rng(seed).shuffle(mixed)
    tails: list[bytes | str] = [tail(data) for data in mixed]
    body = tails[0]
    assert isinstance(body, bytes)
    at = seed % (len(body) - 8)
    bad = [body[:at] + body[-8:], "missing"]
    *found, cut_short, missing = both([*tails, *bad], [None] * (len(mixed) + 2))
    for one, data in zip(found, mixed, strict=True):
        same(one, slow_look(data))
    assert cut_short["problem"].startswith("unreadable")
    assert missing["problem"] == "missing"


@examples(10)
@given(st.binary(max_size=60), st.integers(0, 200))
@example(b"\x80", 31)  # a column's name
def test_a_corrupt_footer_does_not_affect_other_files(nonsense: bytes, at: int) -> None:
    good = tail(parquet(pa.table({"a": [1, 2], "b": ["x", "y"]})))
    at %= len(good) - 8
    bad = good[:at] + nonsense + good[at + len(nonsense) : -8] + good[-8:]
    found = both([good] * 20 + [bad], [None] * 21)
    assert all(one == found[0] for one in found[:20])
    assert found[0]["problem"] is None


def keys_of(values: list[Any], kind: pa.DataType, **settings: Any) -> list[bytes]:
    """Return the sort keys of values, each the minimum of one row group."""
    data = parquet(pa.table({"c": pa.array(values, kind)}), row_group_size=1, **settings)
    (found,) = facts(data)
    return [group["chunks"][0]["low"] for group in found["groups"]]


moments = st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2100, 1, 1))
ALIKE: list[tuple[st.SearchStrategy[Any], list[pa.DataType]]] = [
    (st.integers(-(2**31), 2**31 - 1), [pa.int32(), pa.int64()]),
    (st.integers(-(2**63), 2**63 - 1), [pa.int64()]),
    (st.integers(0, 2**64 - 1), [pa.uint64()]),
    (st.floats(allow_nan=False, width=32).filter(bool), [pa.float32(), pa.float64()]),
    (st.decimals(-999_999, 999_999, places=3), [pa.decimal128(p, 3) for p in (9, 18, 19, 38)]),
    (st.binary(max_size=4), [pa.binary()]),
    (st.text(max_size=4), [pa.string()]),
    (st.dates(), [pa.date32()]),
    (st.booleans(), [pa.bool_()]),
    (moments.map(lambda m: m.replace(microsecond=m.microsecond // 1000 * 1000)),
     [pa.timestamp(unit) for unit in ("ms", "us", "ns")]),
    (moments, [pa.timestamp("us", "UTC")]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "kinds"), ALIKE, ids=[str(kinds[0]) for _, kinds in ALIKE])
def test_sort_keys_sort_like_their_values(
    values: st.SearchStrategy[Any], kinds: list[pa.DataType]
) -> None:
    """Keys compare across Parquet types: widened columns and other units."""

    @examples(6)
    @given(st.lists(values, min_size=1, max_size=12))
    def check(found: list[Any]) -> None:
        by_kind = [keys_of(found, kind, store_decimal_as_integer=whole) for kind in kinds
                   for whole in (False, True)]  # fmt: skip
        assert all(keys == by_kind[0] for keys in by_kind)
        ranks = {key: rank for rank, key in enumerate(sorted(set(by_kind[0])))}
        wanted = {value: rank for rank, value in enumerate(sorted(set(found)))}
        assert [ranks[key] for key in by_kind[0]] == [wanted[value] for value in found]

    check()


def test_bounds_as_text() -> None:
    rows = pa.table(
        {
            "d": pa.array([date(2024, 2, 29)]),
            "n": pa.array([Decimal("-1.50")], pa.decimal128(30, 2)),
            "i": pa.array([Decimal("-1.50")], pa.decimal128(9, 2)),
            "t": pa.array([datetime(2024, 1, 1, 12)], pa.timestamp("us", "UTC")),
            "h": pa.array([time(1, 2, 3)], pa.time64("us")),
            "f": pa.array([0.1], pa.float32()),
            "u": pa.array([2**64 - 1], pa.uint64()),
            "s": ["é"],
            "b": [b"\xff"],
            "o": [True],
            "half": np.array([1.5], np.float16),
        }
    )
    (found,) = facts(parquet(rows))
    said = {chunk["name"]: chunk["minimum"] for chunk in found["groups"][0]["chunks"]}
    assert said == {
        "d": "2024-02-29",
        "n": "-1.50",
        "i": "-1.50",
        "t": "2024-01-01 12:00:00.000000Z",
        "h": "01:02:03.000000",
        "f": "0.1",
        "u": "18446744073709551615",
        "s": "é",
        "b": "b'\\xff'",
        "o": "True",
        "half": None,
    }


def test_a_value_of_the_wrong_length_is_none() -> None:
    data = np.frombuffer(b"\x01\x00\x00", np.uint8)
    leaf = thrift.LeafType("INT32", "{}")
    texts, keys = thrift.read_bounds(data, np.array([0]), np.array([3]), leaf)
    assert (texts.to_pylist(), keys.to_pylist()) == ([None], [None])


def test_bounds_of_int96_timestamps_come_from_the_log() -> None:
    rows = pa.table({"t": pa.array([0, 1], pa.timestamp("us")), "i": [1, 2]})
    data = parquet(rows, use_deprecated_int96_timestamps=True)
    stats = json.dumps({"minValues": {"t": "1970", "i": 9}, "maxValues": {"t": "1971", "i": 9}})
    logged, silent = both([tail(data)] * 2, [stats, None])
    moment, number = logged["groups"][0]["chunks"]
    assert (moment["low"], moment["high"], moment["minimum"]) == (b"1970", b"1971", None)
    assert number["minimum"] == "1"
    assert silent["groups"][0]["chunks"][0]["low"] is None


def test_leaves_of_a_nested_schema() -> None:
    mapped = {"delta.columnMapping.physicalName": "col-1"}
    inner = {"name": "b", "type": {"type": "array", "elementType": "string"}, "metadata": {}}
    struct = {"type": "struct", "fields": [{"name": "x", "type": "date", "metadata": {}}, inner]}
    fields = [
        {"name": "a", "type": struct, "metadata": mapped},
        {
            "name": "m",
            "type": {"type": "map", "keyType": "string", "valueType": "long"},
            "metadata": {},
        },
    ]
    found = measures.leaves({"schemaString": json.dumps({"type": "struct", "fields": fields})})
    assert [(leaf.physical, leaf.name, leaf.kind, leaf.parts) for leaf in found] == [
        ("col-1.x", "a.x", "date", ("a", "x")),
        ("col-1.b.list.element", "a.b.list.element", "string", ()),
        ("m.key_value.key", "m.key_value.key", "string", ()),
        ("m.key_value.value", "m.key_value.value", "long", ()),
    ]
