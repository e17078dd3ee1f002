from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.odd_names import ODD_BUT_FINE
from mirrorlake.errors import InvalidNameError
from mirrorlake.names import TableName, check_part, file_name, file_number

REFUSED = [
    "", " ", "\u3000", ".", "..", "...", ".hidden", "_hidden", "_metadata.json", "a/b", "a\\b",
    "a:b", "/", "../x", "a/..", "nul\0", "new\nline", "tab\t", "\x1b[31m", "\x7f", "\x85", "\ud800",
    "x" * 201, "é" * 101,
]  # fmt: skip

anything = st.text(st.characters(exclude_categories=()), max_size=220)
# Parts of names that look like a path out of the folder.
nasty = st.lists(
    st.sampled_from(["..", ".", "/", "\\", ":", "a", "%2f", "%2e", "_", "`", ".schema", " ", "\0"]),
    max_size=6,
).map("".join)
part = anything | nasty


def resolves_inside(folder: str, parent: str) -> bool:
    # Resolved as the file system resolves it; the temporary root need not exist.
    root = Path("/lake")
    return (root / folder).resolve().parent == (root / parent).resolve()


@given(part)
def test_no_name_leaves_its_folder(text):
    try:
        name = TableName(None, text)
    except InvalidNameError:
        return
    assert resolves_inside(name.folder, "Files/LandingZone")
    assert resolves_inside(name.table_path, "Tables")
    assert resolves_inside(name.state_path, "Files/_mirrorlake/plans")
    assert Path(name.folder).name == text


@given(part, part)
def test_no_name_in_a_schema_leaves_its_folder(schema, text):
    try:
        name = TableName(schema, text)
    except InvalidNameError:
        return
    assert resolves_inside(name.folder, f"Files/LandingZone/{schema}.schema")
    assert resolves_inside(name.table_path, f"Tables/{schema}")
    assert resolves_inside(f"Tables/{schema}", "Tables")
    assert resolves_inside(f"Files/LandingZone/{schema}.schema", "Files/LandingZone")


@given(part | st.tuples(part, part).map(".".join))
def test_parse_gives_a_name_or_says_no(text):
    try:
        name = TableName.parse(text)
    except InvalidNameError:
        return
    assert TableName.parse(str(name)) == name


@given(st.none() | part, part)
def test_every_name_can_be_written_and_read_again(schema, text):
    try:
        name = TableName(schema, text)
    except InvalidNameError:
        return
    assert TableName.parse(str(name)) == name


@pytest.mark.parametrize("text", ODD_BUT_FINE)
def test_odd_names_are_fine(text):
    check_part(text)
    for name in (TableName(None, text), TableName(text, text), TableName("s", text)):
        assert TableName.parse(str(name)) == name


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text):
    for schema, name in ((None, text), (text, "t"), ("s", text)):
        with pytest.raises(InvalidNameError, match="choose another name"):
            TableName(schema, name)


@pytest.mark.parametrize("text", ["x.schema", "X.SCHEMA", "a b.Schema"])
def test_a_table_is_not_named_like_a_schemas_folder(text):
    with pytest.raises(InvalidNameError, match="like a schema's folder"):
        TableName(None, text)


@pytest.mark.promise("LZ-03")
def test_two_schemas_keep_tables_of_one_name_apart():
    names = [TableName(None, "t"), TableName("a", "t"), TableName("b", "t")]
    for place in ("folder", "table_path", "state_path"):
        assert len({getattr(name, place) for name in names}) == 3
    assert names[1].folder == "Files/LandingZone/a.schema/t"
    assert names[1].table_path == "Tables/a/t"


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("t", None, "t"),
        ("s.t", "s", "t"),
        ("`a.b`", None, "a.b"),
        ("`a.b`.`c.d`", "a.b", "c.d"),
        ("s.`t`", "s", "t"),
        ("`it``s`", None, "it`s"),
        ("two words.日本", "two words", "日本"),
    ],
)
def test_parse(text, schema, name):
    assert TableName.parse(text) == TableName(schema, name)


@pytest.mark.parametrize(
    "text",
    ["", ".", "a.", ".a", "a..b", "a.b.c", "`a", "a`", "`a`b", "``", "a`b`", "`a`.", "`../x`"],
)
def test_parse_refuses(text):
    with pytest.raises(InvalidNameError):
        TableName.parse(text)


@pytest.mark.promise("LZ-13")
@given(st.integers(0, 10**20 - 1), st.sampled_from(["", ".parquet", ".csv"]))
def test_numbers_are_twenty_digits(number, extension):
    name = file_name(number, extension)
    assert name[:20].isdecimal()
    assert name[20:] == extension
    assert file_number(name) == number


@given(st.integers(0, 10**20 - 2))
def test_names_order_as_their_numbers(number):
    assert file_name(number) < file_name(number + 1)


@pytest.mark.parametrize(
    "name",
    [
        "1.parquet", "0" * 19, "_" + "0" * 19 + "1.parquet", "0" * 21, "_metadata.json", "",
        "0" * 19 + "١.parquet", "0" * 20 + ".parquet\n", "0" * 20 + ".parquet.tmp", "0" * 20 + ".",
        "0" * 20 + "parquet", " " + "0" * 20, "0" * 20 + ".json#1", "-" + "0" * 19,
    ],
)  # fmt: skip
def test_other_files_have_no_number(name):
    assert file_number(name) is None


@given(
    st.integers(0, 10**20 - 1),
    st.sampled_from([".csv", ".txt", ".TSV", ".dat", ".parquet"]),
    st.sampled_from([".gz", ".gzip", ".zst", ".ZSTD", ".snappy", ".Gz"]),
)
def test_a_second_ending_may_be_a_compressions(number, extension, compression):
    assert file_number(file_name(number, extension + compression)) == number


@pytest.mark.parametrize(
    "ending",
    [".csv.gz.gz", ".csv.tmp", ".csv.", ".csv.gz.tmp", ".csv.bz2", "..gz", ".csv.gz\n", ".c-v"],
)
def test_other_second_endings_make_no_data_file(ending):
    assert file_number(f"{1:020d}{ending}") is None
