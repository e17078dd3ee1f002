from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.places import METADATA
from mirrorlake.errors import MetadataError
from mirrorlake.landing import metadata
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage

pytestmark = pytest.mark.promise("LZ-04")

T = TableName(None, "t")
PATH = f"{T.folder}/{METADATA}"


def parse(document: object) -> metadata.TableMetadata:
    return metadata.TableMetadata.parse(json.dumps(document).encode())


@pytest.mark.parametrize("field", ["keyColumns", "KeyColumns", "KEYCOLUMNS", "keycolumns"])
def test_field_names_are_read_without_regard_to_case(field):
    assert parse({field: ["Id", "region"]}).keys == ("Id", "region")


def test_upsert_by_default():
    assert parse({"ISUPSERTDEFAULTROWMARKER": True}).upsert_by_default
    assert not parse({"isUpsertDefaultRowMarker": False}).upsert_by_default


@pytest.mark.parametrize("document", [{}, {"keyColumns": []}, {"keyColumns": None}, {"other": 1}])
def test_nothing_declared(document):
    assert parse(document) == metadata.TableMetadata()


def test_byte_order_mark_is_fine():
    data = b'\xef\xbb\xbf{"keyColumns": ["\xc3\xa9"]}'
    assert metadata.TableMetadata.parse(data).keys == ("é",)


@pytest.mark.parametrize(
    "data",
    [
        b"", b" ", b"{", b'{"keyColumns": ["id"]', b'{"keyColumns": ["id"],}', b"\xff\xfe{\0}\0",
        b'{"keyColumns": ["\xe9"]}', b"[" * 100_000, b"not json",
    ],
)  # fmt: skip
def test_broken_json(data):
    with pytest.raises(MetadataError, match="not valid JSON") as caught:
        metadata.TableMetadata.parse(data)
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


@pytest.mark.parametrize("field", ["isUpsertDefaultRowMarker", "isPartitionEnabled"])
@pytest.mark.parametrize("value", ["true", 1, 0, None, []])
def test_a_flag_of_the_wrong_type(field, value):
    with pytest.raises(MetadataError, match=f"{field} is .*, not true or false"):
        parse({field: value})


def test_partition_folders_are_refused():
    assert parse({"isPartitionEnabled": False}) == metadata.TableMetadata()
    with pytest.raises(MetadataError, match="isPartitionEnabled is true") as caught:
        parse({"ISPARTITIONENABLED": True})
    assert caught.value.file == METADATA
    assert "the table's own folder" in caught.value.hint


@pytest.mark.parametrize("keys", [["id", "id"], ["id", "ID"]])
def test_a_key_twice(keys):
    with pytest.raises(MetadataError, match="names a column twice"):
        parse({"keyColumns": keys})


@pytest.mark.parametrize("second", ["keyColumns", "KEYCOLUMNS"])
def test_a_field_twice(second):
    data = f'{{"keyColumns": ["a"], "{second}": ["b"]}}'.encode()
    with pytest.raises(MetadataError, match="twice"):
        metadata.TableMetadata.parse(data)


@given(st.binary(max_size=50))
def test_any_bytes_give_metadata_or_a_metadata_error(data):
    with contextlib.suppress(MetadataError):  # and no other error
        metadata.TableMetadata.parse(data)


def test_no_file_declares_nothing(any_storage: Storage):
    assert metadata.read_metadata(any_storage, T) == metadata.TableMetadata()
    assert metadata.declare_keys(any_storage, T, ()) == metadata.TableMetadata()
    assert not any_storage.exists(PATH)


def test_keys_are_written_as_the_format_has_them(any_storage: Storage):
    metadata.declare_keys(any_storage, T, ("id", "région"))
    assert any_storage.read_json(PATH) == {"keyColumns": ["id", "région"]}
    assert metadata.read_metadata(any_storage, T).keys == ("id", "région")


@pytest.mark.parametrize("keys", [("",), ("id", "ID")])
def test_keys_that_make_no_sense_are_not_written(any_storage: Storage, keys):
    with pytest.raises(MetadataError):
        metadata.declare_keys(any_storage, T, keys)
    assert not any_storage.exists(PATH)


@pytest.mark.promise("LZ-06")
def test_keys_may_be_added_later_and_other_fields_stay(any_storage: Storage):
    kept = {"fileDetectionStrategy": "SequentialFileName", "isUpsertDefaultRowMarker": True}
    any_storage.write_json(PATH, kept | {"KEYCOLUMNS": []})
    found = metadata.declare_keys(any_storage, T, ("id",))
    assert found == metadata.TableMetadata(("id",), upsert_by_default=True)
    assert any_storage.read_json(PATH) == {"keyColumns": ["id"]} | kept
    assert metadata.read_metadata(any_storage, T) == found


@pytest.mark.promise("LZ-06")
@pytest.mark.parametrize("keys", [("other",), ("id", "more"), ("region", "id"), ("region",)])
def test_keys_once_given_cant_be_changed(any_storage: Storage, keys):
    metadata.declare_keys(any_storage, T, ("id", "region"))
    any_storage.write(f"{T.folder}/any name by time.csv", b"id,region")
    before = any_storage.read(PATH)
    with pytest.raises(MetadataError, match="can't become") as caught:
        metadata.declare_keys(any_storage, T, keys)
    assert "['id', 'region']" in caught.value.message
    assert str(list(keys)) in caught.value.message
    assert any_storage.read(PATH) == before


@pytest.mark.promise("LZ-06")
def test_keys_are_replaced_while_there_is_no_file(any_storage: Storage):
    any_storage.write_json(PATH, {"keyColumns": ["nokey"], "isUpsertDefaultRowMarker": True})
    any_storage.write(f"{T.folder}/_staged.parquet", b"not published")
    found = metadata.declare_keys(any_storage, T, ("id",))
    assert (
        found
        == metadata.read_metadata(any_storage, T)
        == metadata.TableMetadata(("id",), upsert_by_default=True)
    )


@pytest.mark.promise("LZ-06")
def test_the_same_keys_again(any_storage: Storage):
    metadata.declare_keys(any_storage, T, ("id",))
    assert metadata.declare_keys(any_storage, T, ("ID",)).keys == ("id",)
    assert metadata.declare_keys(any_storage, T, ()).keys == ("id",)


@pytest.mark.promise("LZ-06")
def test_the_mirror_refuses_keys_that_changed_or_went_away():
    metadata.check_keys_kept(T, (), ("id",))
    metadata.check_keys_kept(T, ("id",), ("ID",))
    for new in ((), ("other",), ("id", "other")):
        with pytest.raises(MetadataError):
            metadata.check_keys_kept(T, ("id",), new)


def case_variants(name: str) -> list[str]:
    return [name, name.lower(), name.upper(), name[0].lower() + name[1:]]


@pytest.mark.parametrize("field", case_variants("FileDetectionStrategy"))
def test_file_detection_strategies(field):
    assert parse({}).strategy == parse({field: None}).strategy == metadata.SEQUENTIAL
    for value in ("SequentialFileName", "sequentialfilename"):
        assert parse({field: value}).strategy == metadata.SEQUENTIAL
    for value in ("LastUpdateTimeFileDetection", "LASTUPDATETIMEFILEDETECTION"):
        assert parse({field: value}).strategy == metadata.BY_TIME
    for value in ("", "Sequential", "LastUpdateTime", 1, True, [], {}):
        with pytest.raises(MetadataError, match="fileDetectionStrategy is") as caught:
            parse({field: value})
        assert caught.value.file == METADATA


@pytest.mark.parametrize("field", case_variants("FileFormat"))
def test_file_formats(field):
    assert not parse({}).text.declared
    assert not parse({field: "Parquet"}).text.declared
    for value in ("CSV", "csv", "DelimitedText", "delimitedtext"):
        assert parse({field: value}).text.declared
    for value in ("", "JSON", "text", 0, ["CSV"]):
        with pytest.raises(MetadataError, match="fileFormat is"):
            parse({field: value})


@pytest.mark.parametrize("field", case_variants("FileExtension"))
def test_file_extensions(field):
    assert parse({field: ".DAT"}).text.extensions == parse({field: "dat"}).text.extensions
    assert parse({field: "dat"}).text.extensions - parse({}).text.extensions == {"dat"}
    for value in (None, "", "csv", "parquet", ".Parquet"):  # Parquet stays what it is
        assert parse({field: value}).text.extensions == parse({}).text.extensions
    for value in (1, True, ["dat"]):
        with pytest.raises(MetadataError, match="fileExtension is"):
            parse({field: value})


# Each property: where it is kept, its default, what it may be, what not.
TEXT = {
    "RowSeparator": ("row_separator", "\r\n", ["\r\n", "\n", "\r"], ["", "\\n", "\n\r", ";", 10]),
    "ColumnSeparator": ("separator", ",", [",", ";", "|", "\t"], ["", "||", ":", " ", "\\t", 1]),
    "QuoteCharacter": ("quote", '"', ['"', "'", ""], ["`", '""', "\\", False]),
    "EscapeCharacter": ("escape", "\\", ["\\", "/", '"', ""], ["'", "\\\\", "^", 0]),
    "NullValue": ("null", "", ["", "NULL", "\\N", "n/a"], [0, False, [], ["NULL"]]),
}


@pytest.mark.parametrize("name", TEXT)
def test_text_properties(name):
    attribute, default, allowed, refused = TEXT[name]

    def read(property_name, value):
        properties = {property_name: value}
        found = parse({"fileFormattypePROPERTIES": properties}).text
        return getattr(found, attribute)

    assert getattr(parse({}).text, attribute) == read(name, None) == default
    for spelled in case_variants(name):
        assert [read(spelled, value) for value in allowed] == allowed
    for value in refused:
        with pytest.raises(MetadataError, match=f"{name} is") as caught:
            read(name, value)
        assert caught.value.file == METADATA


def test_the_first_row_is_a_header():
    for name in case_variants("FirstRowAsHeader"):
        parse({"FileFormatTypeProperties": {name: True}})
        parse({name: True})
        for value in (False, None, "true", 1, 0):
            for document in ({"FileFormatTypeProperties": {name: value}}, {name: value}):
                with pytest.raises(MetadataError, match="FirstRowAsHeader must be true"):
                    parse(document)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        (None, "utf-8-sig"),
        ("UTF-8", "utf-8-sig"),
        ("utf8", "utf-8-sig"),
        ("UTF-8 without BOM", "utf-8-sig"),
        ("UTF-16", "utf-16"),
        ("UTF-16BE", "utf-16-be"),
        ("UTF-32", "utf-32"),
        ("UTF-32BE", "utf-32-be"),
        ("US-ASCII", "ascii"),
        ("UTF-7", "utf-7"),
        ("BIG5", "big5"),
        ("EUC-JP", "euc_jp"),
        ("GB18030", "gb18030"),
        ("SHIFT-JIS", "shift_jis"),
        ("ISO-2022-KR", "iso2022_kr"),
        ("ISO-8859-15", "iso8859-15"),
        ("CP866", "cp866"),
        ("IBM037", "cp037"),
        ("IBM00858", "cp858"),
        ("IBM01140", "cp1140"),
        ("IBM737", "cp737"),
        ("WINDOWS-874", "cp874"),
        ("WINDOWS-1252", "cp1252"),
    ],
)
def test_encodings_by_the_formats_names(name, codec):
    assert parse({"FileFormatTypeProperties": {"encoding": name}}).text.encoding == codec


@pytest.mark.parametrize(
    "name", ["", "UTF-9", "base64", "rot13", "undefined", "a\0b", "\ud800", 8, True, ["UTF-8"], {}]
)
def test_encodings_that_are_none(name):
    with pytest.raises(MetadataError, match=r"The encoding .* does not exist") as caught:
        parse({"FileFormatTypeProperties": {"Encoding": name}})
    assert caught.value.file == METADATA


TYPES = {
    "Boolean": "boolean", "ByteArray": "binary", "DateTime": "timestamp", "Double": "double",
    "IDate": "date", "Int16": "short", "Int32": "integer", "Int64": "long", "ITime": "string",
    "Single": "float", "String": "string",
}  # fmt: skip


def test_declared_columns_keep_their_order_and_have_a_type_in_the_table():
    for spelled in (str, str.upper, str.lower):
        columns = [
            {spelled("Name"): f"c {kind}", spelled("DataType"): spelled(kind), "IsNullable": flag}
            for kind, flag in zip(TYPES, [True, False, None] * 4, strict=False)
        ]
        found = parse({spelled("SchemaDefinition"): {spelled("Columns"): columns}})
        assert found.table_columns == {f"c {kind}": table for kind, table in TYPES.items()}
        assert list(found.columns) == [f"c {kind}" for kind in TYPES]
    assert parse({"SchemaDefinition": None}).columns == parse({}).columns == {}
    assert parse({"SchemaDefinition": {"Columns": []}}).columns == {}


GOOD_COLUMN = {"Name": "a", "DataType": "String"}


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        ([], "SchemaDefinition"),
        ("Columns", "SchemaDefinition"),
        ({}, "SchemaDefinition.Columns"),
        ({"Columns": None}, "SchemaDefinition.Columns"),
        ({"Columns": {"a": "String"}}, "SchemaDefinition.Columns"),
        ({"Columns": ["a"]}, "a column of SchemaDefinition"),
        ({"Columns": [{}]}, "SchemaDefinition.Columns"),
        ({"Columns": [GOOD_COLUMN | {"Name": ""}]}, "SchemaDefinition.Columns"),
        ({"Columns": [GOOD_COLUMN | {"Name": 1}]}, "SchemaDefinition.Columns"),
        ({"Columns": [GOOD_COLUMN, GOOD_COLUMN | {"Name": "A"}]}, "SchemaDefinition.Columns"),
        ({"Columns": [GOOD_COLUMN | {"name": "b"}]}, "twice"),
        ({"Columns": [{"Name": "a"}]}, "DataType of 'a'"),
        ({"Columns": [GOOD_COLUMN | {"DataType": 4}]}, "DataType of 'a'"),
        ({"Columns": [GOOD_COLUMN | {"DataType": "Int8"}]}, "The data type 'Int8' does not exist"),
        ({"Columns": [GOOD_COLUMN | {"DataType": ""}]}, "The data type '' does not exist"),
        ({"Columns": [GOOD_COLUMN | {"IsNullable": "yes"}]}, "IsNullable of 'a'"),
        ({"Columns": [GOOD_COLUMN | {"IsNullable": 1}]}, "IsNullable of 'a'"),
    ],
)
def test_schema_definitions_that_make_no_sense(definition, says):
    with pytest.raises(MetadataError, match=says) as caught:
        parse({"SchemaDefinition": definition})
    assert caught.value.file == METADATA


def test_properties_that_are_no_object_or_occur_twice():
    for properties in ([], "x", 1, True):
        with pytest.raises(MetadataError, match="FileFormatTypeProperties is not"):
            parse({"FileFormatTypeProperties": properties})
    with pytest.raises(MetadataError, match="twice"):
        parse({"FileFormatTypeProperties": {"NullValue": "", "nullvalue": ""}})


@pytest.mark.promise("LZ-06")
def test_adding_keys_keeps_every_other_field_as_it_was(any_storage: Storage):
    kept = {
        "FileFormat": "CSV",
        "fileformattypeproperties": {"columnSEPARATOR": "|", "unknown": [1]},
        "SchemaDefinition": {"Columns": [GOOD_COLUMN]},
        "somebody's own": {"x": None},
    }
    any_storage.write_json(PATH, kept)
    found = metadata.declare_keys(any_storage, T, ("a",))
    assert (found.keys, found.text.separator, found.columns) == (("a",), "|", {"a": "String"})
    assert any_storage.read_json(PATH) == {"keyColumns": ["a"]} | kept
