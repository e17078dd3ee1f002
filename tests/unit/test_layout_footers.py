from __future__ import annotations

import io
import json
import math
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.layout.footers import Storages, _try_footer, footer_facts, read_tail
from mirrorlake.layout.log_files import find_segment
from mirrorlake.layout.schema_paths import leaves
from mirrorlake.layout.sort_keys import sort_key
from mirrorlake.storage import Storage


def parquet(table: pa.Table, **settings: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **settings)
    return sink.getvalue()


def facts(data: bytes) -> dict[str, Any]:
    storage = Storage("memory:///")
    storage.write("f.parquet", data)
    return footer_facts(read_tail(storage, "f.parquet", len(data)))


def test_dictionary_overflow_is_proven_not_guessed() -> None:
    wide = pa.table({"c": [f"a text that is long enough {i}" for i in range(20_000)]})
    narrow = pa.table({"c": ["x", "y"] * 10_000})
    settings = {"dictionary_pagesize_limit": 20_000, "data_page_size": 20_000}
    (overflowing,) = facts(parquet(wide, **settings))["groups"][0]["chunks"]
    (fits,) = facts(parquet(narrow, **settings))["groups"][0]["chunks"]
    (plain,) = facts(parquet(wide, use_dictionary=False))["groups"][0]["chunks"]
    # Both have a dictionary and a plain encoding in their lists; only the statistics tell.
    assert "PLAIN" in overflowing["encodings"]
    assert "PLAIN" in fits["encodings"]
    assert (overflowing["overflow"], fits["overflow"], plain["overflow"]) == (True, False, None)
    assert fits["dict_bytes"] > 0
    assert plain["dict_bytes"] is None


def test_a_footer_larger_than_the_first_read() -> None:
    table = pa.table({f"column number {i}": [i] for i in range(3_000)})
    found = facts(parquet(table))
    assert len(found["groups"][0]["chunks"]) == 3_000
    assert found["groups"][0]["chunks"][2_999]["minimum"] == "2999"


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no parquet at all", b"x" * 100 + b"\xff" * 4])
def test_what_is_no_parquet_file_is_a_problem_of_that_file(data: bytes, storage: Storage) -> None:
    storage.write("t/f", data)
    stores = Storages(storage.root, "t")
    row = {"path": "f", "size": len(data), "stats": None}
    assert _try_footer(stores, row)["problem"].startswith("unreadable")
    assert _try_footer(stores, row | {"path": "gone"}) == {"problem": "missing"}


def test_a_clone_reads_the_other_tables_files(tmp_path: Path) -> None:
    stores = Storages(str(tmp_path / "lake"), "Tables/t")
    for path in (f"{tmp_path}/b c.parquet", f"file:{tmp_path}/b c.parquet"):
        (tmp_path / "b c.parquet").write_bytes(b"x")
        storage, inner = stores.place(path)
        assert storage.read(inner) == b"x"
    storage, inner = stores.place("http://127.0.0.1:1/a/b.parquet")
    assert (storage.root, inner) == ("http://127.0.0.1:1", "a/b.parquet")
    assert stores.place("p=1/f")[1] == "Tables/t/p=1/f"


moments = st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 1, 1))
ALIKE = [
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**20)),
    st.binary(max_size=4),
    st.dates(),
    moments,
    moments.map(lambda m: m.replace(tzinfo=timezone.utc)),
]


@given(st.one_of(*[st.tuples(kind, kind) for kind in ALIKE]))
def test_sort_keys_sort_like_their_values(pair: tuple[Any, Any]) -> None:
    first, second = pair
    keys = (sort_key(first), sort_key(second))
    if first == second:
        assert keys[0] == keys[1] or math.copysign(1, first) != math.copysign(1, second)
    else:
        assert (keys[0] < keys[1]) == (first < second)


def test_sort_keys_of_the_rest() -> None:
    assert sort_key(None) is None
    assert sort_key([1]) is None
    assert sort_key("a") < sort_key("b")
    assert sort_key(Decimal("-1.50")) < sort_key(Decimal("1.49"))
    assert np.argsort([sort_key(v) for v in (True, False)]).tolist() == [1, 0]


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
    found = leaves({"schemaString": json.dumps({"type": "struct", "fields": fields})})
    assert [(leaf.physical, leaf.name, leaf.kind, leaf.parts) for leaf in found] == [
        ("col-1.x", "a.x", "date", ("a", "x")),
        ("col-1.b.list.element", "a.b.list.element", "string", ()),
        ("m.key_value.key", "m.key_value.key", "string", ()),
        ("m.key_value.value", "m.key_value.value", "long", ()),
    ]


def test_a_segment_starts_at_a_checkpoint_that_is_whole(storage: Storage) -> None:
    with pytest.raises(TableNotFoundError):
        find_segment(storage, "t")
    log = "t/_delta_log"
    for version in range(2, 8):
        storage.write(f"{log}/{version:020d}.json", b"")
    parts = [f"{v:020d}.checkpoint.{i:010d}.{2:010d}.parquet" for v in (3, 5) for i in (1, 2)]
    for name in parts[:3]:  # the second part of version 5 is missing
        storage.write(f"{log}/{name}", parquet(pa.table({"add": [1]})))
    storage.write(f"{log}/{1:020d}.checkpoint.parquet", parquet(pa.table({"add": [1]})))
    newest = find_segment(storage, "t")
    assert (newest.version, newest.base) == (7, 3)
    assert [version for version, _ in newest.pieces] == [3, 3, 4, 5, 6, 7]
    assert find_segment(storage, "t", oldest=True).base == 1
    assert find_segment(storage, "t", 2).base == 1
    for gone in (0, 8, -1):
        with pytest.raises(UsageError, match=f"Version {gone}"):
            find_segment(storage, "t", gone)
