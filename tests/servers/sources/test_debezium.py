"""Debezium events: operations, types, unavailable values, invalid input."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.examples import examples
from helpers.landed import folder_of, landed_files, landed_rows
from mirrorlake import Lake
from mirrorlake.errors import DataFileError, InvalidNameError, MirrorlakeError, SourceError
from mirrorlake_sources import DebeziumFiles, Journal, run_source

UNAVAILABLE = "__debezium_unavailable_value"
COLUMNS = [{"field": "id", "type": "int32"}, {"field": "word", "type": "string", "optional": True}]


def event(op: str, before: Any, after: Any, *, table: str = "t", columns: Any = COLUMNS) -> dict:
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": columns}]}
    source = {"schema": "public", "table": table, "lsn": 77}
    return {
        "schema": schema,
        "payload": {"before": before, "after": after, "source": source, "op": op},
    }


def keyed(value: Any, **key: Any) -> dict:
    return {"key": {"payload": key}, "value": value}


class Drops:
    """A folder of event files and a lake."""

    def __init__(self, base: Path) -> None:
        self.root, self.folder = base / "lake", base / "drops"
        self.folder.mkdir()

    def write(self, *lines: Any, name: str = "a.jsonl") -> None:
        with (self.folder / name).open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def run(self, **options: Any):
        source = DebeziumFiles(self.folder, Lake(self.root).storage, **options)
        return run_source(Lake(self.root).storage, source)

    def rows(self, table: str = "t") -> list[dict[str, Any]]:
        return sorted(landed_rows(self.root, table), key=lambda row: row["id"])


@pytest.fixture
def drops(tmp_path: Path) -> Drops:
    return Drops(tmp_path)


def test_operations(drops: Drops) -> None:
    drops.write(
        keyed(event("r", None, {"id": 1, "word": "a"}), id=1),
        keyed(event("c", None, {"id": 2, "word": "b"}), id=2),
        keyed(event("u", None, {"id": 2, "word": "B"}), id=2),
        keyed(event("c", None, {"id": 3, "word": None}), id=3),
        keyed(event("d", None, None), id=3),
        keyed(None, id=3),  # a tombstone
        {"schema": None, "payload": {"op": "m", "source": {}, "message": {"prefix": "x"}}},
        {"payload": {"databaseName": "x", "ddl": "CREATE TABLE …", "source": {}}},
        {"payload": {"ts_ms": 1}},  # a heartbeat
    )
    assert not drops.run().failed
    assert drops.rows() == [{"id": 1, "word": "a"}, {"id": 2, "word": "B"}]
    import pyarrow.parquet as pq

    (file,) = landed_files(drops.root, "t")
    assert pq.read_table(file).column("__rowMarker__").to_pylist() == [4, 4, 1, 4, 2]
    assert b"mirrorlake.source" in pq.read_metadata(file).metadata


def test_a_key_change_is_a_delete_and_an_insert(drops: Drops) -> None:
    drops.write(keyed(event("c", None, {"id": 1, "word": "a"}), id=1))
    drops.write(
        keyed(event("d", {"id": 1, "word": "a"}, None), id=1),
        keyed(event("c", None, {"id": 9, "word": "a"}), id=9),
    )
    drops.run()
    assert drops.rows() == [{"id": 9, "word": "a"}]


def test_truncate_replaces_the_folder(drops: Drops) -> None:
    drops.write(keyed(event("c", None, {"id": 1, "word": "a"}), id=1))
    drops.run()
    drops.write(
        keyed(event("c", None, {"id": 2, "word": "a"}), id=2),
        event("t", None, None),
        keyed(event("c", None, {"id": 3, "word": "a"}), id=3),
    )
    drops.run()
    assert drops.rows() == [{"id": 3, "word": "a"}]
    drops.run()
    assert drops.rows() == [{"id": 3, "word": "a"}]


def test_keys_outlive_a_truncate_that_nothing_follows(drops: Drops) -> None:
    drops.write(event("c", None, {"id": 1, "word": "a"}), event("t", None, None))
    drops.run(keys={"t": ["id"]})
    metadata = folder_of(drops.root, "t") / "_metadata.json"
    assert json.loads(metadata.read_text())["keyColumns"] == ["id"]


def test_schemas_are_folders(drops: Drops) -> None:
    one = event("c", None, {"id": 1, "word": "a"})
    one["payload"]["source"]["schema"] = "sales"
    drops.write(keyed(one, id=1))
    drops.run()
    assert folder_of(drops.root, "sales.t").is_dir()


TYPES = [
    ({"type": "int8"}, -5, -5),
    ({"type": "int16"}, 300, 300),
    ({"type": "int64"}, 2**62, 2**62),
    ({"type": "float"}, 0.5, 0.5),
    ({"type": "double"}, "NaN", "nan"),
    ({"type": "boolean"}, True, True),
    ({"type": "string"}, "ä", "ä"),
    ({"type": "bytes"}, "AP8=", b"\x00\xff"),
    ({"type": "int32", "name": "io.debezium.time.Date"}, -1, datetime.date(1969, 12, 31)),
    (
        {"type": "int64", "name": "io.debezium.time.Timestamp"},
        1700000000123,
        datetime.datetime(2023, 11, 14, 22, 13, 20, 123000),
    ),
    (
        {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        1700000000123456,
        datetime.datetime(2023, 11, 14, 22, 13, 20, 123456),
    ),
    (
        {"type": "int64", "name": "io.debezium.time.NanoTimestamp"},
        1700000000123456789,
        datetime.datetime(2023, 11, 14, 22, 13, 20, 123456),
    ),
    (
        {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        "2023-11-14T22:13:20.123456Z",
        datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=datetime.timezone.utc),
    ),
    ({"type": "int32", "name": "io.debezium.time.Time"}, 3723004, datetime.time(1, 2, 3, 4000)),
    (
        {"type": "int64", "name": "io.debezium.time.MicroTime"},
        3723000004,
        datetime.time(1, 2, 3, 4),
    ),
    (
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "38"},
        },
        base64.b64encode((-(10**37) + 1).to_bytes(16, "big", signed=True)).decode(),
        Decimal("-99999999999999999999999999999999999.99"),
    ),
    (
        {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
        {"scale": 3, "value": base64.b64encode((1500).to_bytes(2, "big")).decode()},
        "1.500",
    ),
    ({"type": "string", "name": "io.debezium.data.Json"}, '{"a":  1}', '{"a":  1}'),
    ({"type": "string", "name": "io.debezium.data.Uuid"}, "a0ee", "a0ee"),
    ({"type": "string", "name": "io.debezium.data.Enum"}, "sad", "sad"),
    ({"type": "array", "items": {"type": "int32"}}, [1, None], "[1,null]"),
]


def test_types(drops: Drops) -> None:
    columns = [{"field": "id", "type": "int32"}]
    columns += [
        {**kind, "field": f"c{i}", "optional": True} for i, (kind, _, _) in enumerate(TYPES)
    ]
    row = {"id": 1} | {f"c{i}": value for i, (_, value, _) in enumerate(TYPES)}
    empty = {"id": 2} | {f"c{i}": None for i in range(len(TYPES))}
    drops.write(keyed(event("c", None, row, columns=columns), id=1))
    drops.write(keyed(event("c", None, empty, columns=columns), id=2))
    assert not drops.run().failed
    first, second = drops.rows()
    assert [str(first[f"c{i}"]) for i in range(len(TYPES))] == [str(w) for _, _, w in TYPES]
    assert second == empty


def test_a_new_schema_in_the_middle(drops: Drops) -> None:
    wider = [*COLUMNS, {"field": "n", "type": "int64", "optional": True}]
    drops.write(keyed(event("c", None, {"id": 1, "word": "a"}), id=1))
    drops.write(keyed(event("c", None, {"id": 2, "word": "b", "n": 5}, columns=wider), id=2))
    drops.run()
    assert drops.rows() == [{"id": 1, "word": "a", "n": None}, {"id": 2, "word": "b", "n": 5}]


FORMS = [UNAVAILABLE, base64.b64encode(UNAVAILABLE.encode()).decode(), [UNAVAILABLE]]


@pytest.mark.parametrize("form", FORMS, ids=["text", "binary", "array"])
def test_values_that_were_not_available_never_become_data(drops: Drops, form: Any) -> None:
    drops.write(keyed(event("c", None, {"id": 1, "word": "big"}), id=1))
    drops.write(keyed(event("u", {"id": 1, "word": "big"}, {"id": 1, "word": form}), id=1))
    drops.run()
    assert drops.rows() == [{"id": 1, "word": "big"}]  # from the row before
    drops.write(keyed(event("u", None, {"id": 1, "word": form}), id=1))
    with pytest.raises(SourceError, match="not available to Debezium") as caught:
        drops.run()
    assert "REPLICA IDENTITY FULL" in caught.value.hint
    assert (caught.value.file, caught.value.row, caught.value.column) == ("a.jsonl", 3, "word")
    assert len(landed_files(drops.root, "t")) == 1


def test_events_without_a_schema_need_declared_columns(drops: Drops) -> None:
    bare = {"before": None, "after": {"id": 1, "word": "a"}, "source": {"table": "t"}, "op": "c"}
    drops.write(keyed(bare, id=1))
    report = drops.run()
    assert "schemas.enable=true" in str(report.tables[0].error)
    folder = folder_of(drops.root, "t")
    columns = [{"Name": "id", "DataType": "Int32"}, {"Name": "word", "DataType": "String"}]
    document = {"keyColumns": ["id"], "SchemaDefinition": {"Columns": columns}}
    (folder / "_metadata.json").write_text(json.dumps(document))
    assert not drops.run().failed  # its events are still there
    assert drops.rows() == [{"id": 1, "word": "a"}]


def test_events_without_a_key(drops: Drops) -> None:
    drops.write(event("c", None, {"id": 1, "word": "a"}), event("c", None, {"id": 1, "word": "a"}))
    assert not drops.run().failed
    assert len(drops.rows()) == 2
    drops.write(event("u", None, {"id": 1, "word": "b"}))
    assert "have no key" in str(drops.run().tables[0].error)


def test_keys_named_by_hand(drops: Drops) -> None:
    drops.write(event("c", None, {"id": 1, "word": "a"}), event("u", None, {"id": 1, "word": "b"}))
    assert not drops.run(keys={"t": ["id"]}).failed
    assert drops.rows() == [{"id": 1, "word": "b"}]


def test_wrong_keys_named_by_hand_can_be_corrected(drops: Drops) -> None:
    drops.write(event("c", None, {"id": 1, "word": "a"}), event("u", None, {"id": 1, "word": "b"}))
    assert "'nokey' is missing" in str(drops.run(keys={"t": ["nokey"]}).tables[0].error)
    assert not drops.run(keys={"t": ["id"]}).failed
    assert drops.rows() == [{"id": 1, "word": "b"}]
    assert "was ['id'], and is ['word'] now" in str(drops.run(keys={"t": ["word"]}).tables[0].error)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not a Debezium event"),
        ('{"id": 1}', "operation None"),
        ('{"payload": {"op": "c", "after": {"id": 1}, "source": {}}}', "does not name its table"),
        ('{"payload": {"op": "d", "before": null, "source": {"table": "t"}}}', "neither a row nor"),
    ],
)
def test_broken_lines_are_named(drops: Drops, line: str, says: str) -> None:
    drops.write(keyed(event("c", None, {"id": 1, "word": "a"}), id=1))
    (drops.folder / "b.jsonl").write_text(line + "\n")
    with pytest.raises(SourceError, match=says) as caught:
        drops.run()
    assert (caught.value.file, caught.value.row) == ("b.jsonl", 1)
    assert drops.rows() == [{"id": 1, "word": "a"}]  # what came before stands


def test_a_line_that_is_still_written_waits(drops: Drops) -> None:
    text = json.dumps(keyed(event("c", None, {"id": 1, "word": "a"}), id=1))
    (drops.folder / "a.jsonl").write_text(text[:40])
    drops.run()
    assert not folder_of(drops.root, "t").exists()
    (drops.folder / "a.jsonl").write_text(text + "\n")
    drops.run()
    assert drops.rows() == [{"id": 1, "word": "a"}]


def test_the_journal_refuses_and_survives(tmp_path: Path) -> None:
    storage = Lake(tmp_path / "lake").storage
    journal = Journal(storage, "shop")
    for name in ("..", "a/b", "", "_x"):
        with pytest.raises(InvalidNameError):
            Journal(storage, name)
    with pytest.raises(DataFileError, match="not valid JSON"):
        journal.append(b"{")
    with pytest.raises(DataFileError, match="not a Debezium event"):
        journal.append(json.dumps([keyed(event("c", None, {"id": 1}), id=1), 7]).encode())
    assert list(journal.folder.iterdir()) == []  # nothing of a refused body is taken
    assert (
        journal.append(json.dumps(keyed(event("c", None, {"id": 1, "word": ""}), id=1)).encode())
        == 1
    )
    with next(journal.folder.iterdir()).open("ab") as file:
        file.write(b'{"torn')  # what a kill leaves: it was never answered
    journal.append(json.dumps(keyed(event("c", None, {"id": 2, "word": ""}), id=2)).encode())
    run_source(storage, journal.source())
    assert sorted(row["id"] for row in landed_rows(tmp_path / "lake", "t")) == [1, 2]


WORDS = st.sampled_from(
    ["payload", "schema", "fields", "field", "op", "c", "u", "d", "t", "m", "before", "after", "id",
     "source", "table", "key", "value", "ddl", "databaseName", "tableChanges", "ts_ms", "..", ""]
)  # fmt: skip
DOCUMENTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=5)),
    max_leaves=20,
)


@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=DOCUMENTS)
def test_whatever_is_posted_is_taken_or_refused(tmp_path: Path, document: Any) -> None:
    """Any other error would be a failure of the server: 500."""
    journal = Journal(Lake(tmp_path / "lake").storage, "any")
    with contextlib.suppress(MirrorlakeError):
        journal.append(json.dumps(document).encode())
    for file in journal.folder.iterdir():
        for line in file.read_text().splitlines():
            json.loads(line)


POSTER = """
import json, sys
from mirrorlake_sources import Journal
from mirrorlake.storage.files import Storage

journal = Journal(Storage(sys.argv[1]), "shop")
schema = json.loads(sys.argv[2])
for number in range(int(sys.argv[3]), 100000):
    payload = {"after": {"id": number}, "source": {"table": "t"}, "op": "c"}
    event = {"key": {"id": number}, "value": {"schema": schema, "payload": payload}}
    journal.append(json.dumps([event]).encode())
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


def test_what_was_answered_is_in_the_journal(tmp_path: Path) -> None:
    """After kills and parallel reads the journal has each confirmed event exactly once."""
    root = tmp_path / "lake"
    fields = [{"field": "after", "type": "struct", "fields": [{"field": "id", "type": "int32"}]}]
    schema, first = json.dumps({"type": "struct", "fields": fields}), 0
    answered: list[int] = []
    for _ in range(3):
        command = [sys.executable, "-c", POSTER, str(root), schema, str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as poster:
            assert poster.stdout is not None
            answered.append(int(poster.stdout.readline()))
            time.sleep(0.1)
            run_source(Lake(root).storage, Journal(Lake(root).storage, "shop").source())
            os.kill(poster.pid, signal.SIGKILL)
            answered += [int(line) for line in poster.stdout.read().split()]
        first = answered[-1] + 2  # the one after the last answered may be there, too
    run_source(Lake(root).storage, Journal(Lake(root).storage, "shop").source())
    ids = [row["id"] for row in landed_rows(root, "t")]
    assert set(answered) <= set(ids)
    assert len(set(ids)) == len(ids)
