from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.errors import MetadataError
from mirrorlake.landing.metadata import (
    TableMetadata,
    check_keys_kept,
    declare_keys,
    read_metadata,
)
from mirrorlake.names import METADATA, TableName
from mirrorlake.storage import Storage

pytestmark = pytest.mark.promise("LZ-04")

T = TableName(None, "t")
PATH = f"{T.folder}/{METADATA}"


def parse(document: object) -> TableMetadata:
    return TableMetadata.parse(json.dumps(document).encode())


@pytest.mark.parametrize("field", ["keyColumns", "KeyColumns", "KEYCOLUMNS", "keycolumns"])
def test_field_names_are_read_without_regard_to_case(field):
    assert parse({field: ["Id", "region"]}).keys == ("Id", "region")


def test_upsert_by_default():
    assert parse({"ISUPSERTDEFAULTROWMARKER": True}).upsert_by_default
    assert not parse({"isUpsertDefaultRowMarker": False}).upsert_by_default


@pytest.mark.parametrize("document", [{}, {"keyColumns": []}, {"keyColumns": None}, {"other": 1}])
def test_nothing_declared(document):
    assert parse(document) == TableMetadata()


def test_byte_order_mark_is_fine():
    data = b'\xef\xbb\xbf{"keyColumns": ["\xc3\xa9"]}'
    assert TableMetadata.parse(data).keys == ("é",)


@pytest.mark.parametrize(
    "data",
    [
        b"", b" ", b"{", b'{"keyColumns": ["id"]', b'{"keyColumns": ["id"],}', b"\xff\xfe{\0}\0",
        b'{"keyColumns": ["\xe9"]}', b"[" * 100_000, b"not json",
    ],
)  # fmt: skip
def test_broken_json(data):
    with pytest.raises(MetadataError, match="not valid JSON") as caught:
        TableMetadata.parse(data)
    assert caught.value.file == METADATA
    assert "keyColumns" in caught.value.hint


@pytest.mark.parametrize("document", [[], ["id"], "id", 1, None, True])
def test_not_an_object(document):
    with pytest.raises(MetadataError, match="not a JSON object"):
        parse(document)


@pytest.mark.parametrize(
    "keys", ["id", "", 0, 1, False, True, {}, {"id": 1}, [1], [None], [""], [["id"]], ["id", 2]]
)
def test_keys_of_the_wrong_type(keys):
    with pytest.raises(MetadataError, match="not a list of column names"):
        parse({"keyColumns": keys})


@pytest.mark.parametrize("value", ["true", 1, 0, None, []])
def test_upsert_flag_of_the_wrong_type(value):
    with pytest.raises(MetadataError, match="not true or false"):
        parse({"isUpsertDefaultRowMarker": value})


@pytest.mark.parametrize("keys", [["id", "id"], ["id", "ID"]])
def test_a_key_twice(keys):
    with pytest.raises(MetadataError, match="names a column twice"):
        parse({"keyColumns": keys})


@pytest.mark.parametrize("second", ["keyColumns", "KEYCOLUMNS"])
def test_a_field_twice(second):
    data = f'{{"keyColumns": ["a"], "{second}": ["b"]}}'.encode()
    with pytest.raises(MetadataError, match="twice"):
        TableMetadata.parse(data)


@given(st.binary(max_size=50))
def test_any_bytes_give_metadata_or_a_metadata_error(data):
    with contextlib.suppress(MetadataError):  # and no other error
        TableMetadata.parse(data)


def test_no_file_declares_nothing(any_storage: Storage):
    assert read_metadata(any_storage, T) == TableMetadata()
    assert declare_keys(any_storage, T, ()) == TableMetadata()
    assert not any_storage.exists(PATH)


def test_keys_are_written_as_the_format_has_them(any_storage: Storage):
    declare_keys(any_storage, T, ("id", "région"))
    assert any_storage.read_json(PATH) == {"keyColumns": ["id", "région"]}
    assert read_metadata(any_storage, T).keys == ("id", "région")


@pytest.mark.parametrize("keys", [("",), ("id", "ID")])
def test_keys_that_make_no_sense_are_not_written(any_storage: Storage, keys):
    with pytest.raises(MetadataError):
        declare_keys(any_storage, T, keys)
    assert not any_storage.exists(PATH)


@pytest.mark.promise("LZ-06")
def test_keys_may_be_added_later_and_other_fields_stay(any_storage: Storage):
    kept = {"fileDetectionStrategy": "SequentialFileName", "isUpsertDefaultRowMarker": True}
    any_storage.write_json(PATH, kept | {"KEYCOLUMNS": []})
    found = declare_keys(any_storage, T, ("id",))
    assert found == TableMetadata(("id",), upsert_by_default=True)
    assert any_storage.read_json(PATH) == {"keyColumns": ["id"]} | kept
    assert read_metadata(any_storage, T) == found


@pytest.mark.promise("LZ-06")
@pytest.mark.parametrize("keys", [("other",), ("id", "more"), ("region", "id"), ("region",)])
def test_keys_once_given_cant_be_changed(any_storage: Storage, keys):
    declare_keys(any_storage, T, ("id", "region"))
    before = any_storage.read(PATH)
    with pytest.raises(MetadataError, match="can't become") as caught:
        declare_keys(any_storage, T, keys)
    assert "['id', 'region']" in caught.value.message
    assert str(list(keys)) in caught.value.message
    assert any_storage.read(PATH) == before


@pytest.mark.promise("LZ-06")
def test_the_same_keys_again(any_storage: Storage):
    declare_keys(any_storage, T, ("id",))
    assert declare_keys(any_storage, T, ("ID",)).keys == ("id",)
    assert declare_keys(any_storage, T, ()).keys == ("id",)


@pytest.mark.promise("LZ-06")
def test_the_mirror_refuses_keys_that_changed_or_went_away():
    check_keys_kept(T, (), ("id",))
    check_keys_kept(T, ("id",), ("ID",))
    for new in ((), ("other",), ("id", "other")):
        with pytest.raises(MetadataError):
            check_keys_kept(T, ("id",), new)
