from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from helpers import lint_cases_names, lint_cases_rows
from helpers.examples import examples
from helpers.lint_case import FIRST, THIRD, text_file
from helpers.lint_clean import CLEAN, clean_mirrored, clean_plain
from helpers.places import PARTNER_EVENTS, ZONE
from helpers.zones import KEYED, MARKER, Zone
from mirrorlake import Lake
from mirrorlake.cli import main as cli
from mirrorlake.errors import MirrorlakeError, TableNotFoundError
from mirrorlake.landing import check, lint_rules
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.mirror import options
from mirrorlake.mirror.lint import lint_zone
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Storage
from mirrorlake.storage.paths import PROGRAM

DOCS = Path(__file__).parents[3] / "docs" / "lint.md"
CASES = [*lint_cases_names.CASES, *lint_cases_rows.CASES]


@pytest.mark.parametrize(
    ("rule", "make", "where"), CASES, ids=[f"{i}-{rule}" for i, (rule, _, _) in enumerate(CASES)]
)
def test_each_rule_and_no_other(storage: Storage, rule, make, where):
    make(Zone(storage))
    findings = lint_zone(storage).findings
    assert [found.rule for found in findings] == [rule], findings
    found = findings[0]
    assert (found.table, found.file, found.row, found.column) == where
    assert found.message.endswith(".")
    assert re.match(r"[A-Z][a-z]+ .*[.)]$", found.fix, re.DOTALL), found.fix


def test_every_rule_is_tested():
    assert {rule for rule, _, _ in CASES} == set(lint_rules.RULES)
    severities = {rule.severity for rule in lint_rules.RULES.values()}
    assert severities == {"error", "warning", "information"}


def test_the_page_is_the_one_that_the_rules_make():
    assert DOCS.read_text(encoding="utf-8") == lint_rules.as_page(), (
        "python -m mirrorlake.landing.lint_rules"
    )


@pytest.mark.parametrize("make", CLEAN, ids=lambda make: make.__name__)
def test_nothing_is_found_in_a_clean_zone(storage: Storage, make):
    make(Zone(storage))
    assert lint_zone(storage).findings == ()


def test_an_object_store_is_linted_the_same(any_storage: Storage):
    zone = Zone(any_storage)
    clean_plain(zone)
    assert lint_zone(any_storage).findings == ()
    zone.put(6, {"id": pa.array([1, None]), MARKER: [4, 9]})
    zone.write("t/00000000000000000007.parquet", b"")
    zone.write("t/00000000000000000008.csv", f"id,item,{MARKER}\r\n1,a,4\r\n")
    assert [(f.rule, f.file, f.row) for f in lint_zone(any_storage).findings] == [
        ("number-gap", file_name(5), None),
        ("marker-value", file_name(6), 2),
        ("key-null", file_name(6), 2),
        ("file-zero-bytes", file_name(7), None),
        ("type-changed", "00000000000000000008.csv", None),
        ("column-missing", "00000000000000000008.csv", None),
    ]


def test_a_copied_folder_begins_anew(storage: Storage):
    zone = Zone(storage)
    old = TableName(None, "before")
    zone.put(2, table=old)
    zone.mirrored({"id": "long"}, last=2, keys=(), names=[file_name(2)], table=old)
    storage.write(f"{ZONE}/t/_mirrorlake.json", storage.read(zone.identity_path(old)))
    zone.put(2)
    assert [(f.rule, f.table) for f in lint_zone(storage).findings] == [("number-gap", "t")]


def test_all_that_is_wrong_with_a_file_is_told(storage: Storage):
    zone = Zone(storage)
    zone.metadata({"keyColumns": ["id", "nr"]})
    zone.put(1, {"id": [1], "nr": [1], "n": [1]})
    zone.put(2, {
        MARKER: [4, 3, 9], "id": [None, None, 3], "_metadata": [1, 2, 3], "n": ["a", "b", "c"],
        "d": pa.array([None] * 3, pa.decimal256(50, 1)),
    })  # fmt: skip
    found = {(f.rule, f.row, f.column): f.message for f in lint_zone(storage).findings}
    assert set(found) == {
        ("marker-value", 2, MARKER),
        ("key-null", 1, "id"),
        ("column-reserved", None, "_metadata"),
        ("type-unsupported", None, "d"),
        ("marker-not-last", None, MARKER),
        ("type-changed", None, "n"),
        ("key-missing", None, "nr"),
    }
    assert found["marker-value", 2, MARKER] == "Unknown row marker 3, in 2 rows."
    assert found["key-null", 1, "id"] == "Key column 'id' is NULL, in 2 rows."


def test_every_wrong_field_of_the_metadata_is_told_and_the_others_count(storage: Storage):
    zone = Zone(storage)
    zone.metadata({
        "keyColumns": ["id"], "fileFormat": "Avro", "fileExtension": 7, "keyColumms": ["x"],
    })  # fmt: skip
    zone.put(1, {"id": [None], "n": [1], MARKER: [4]})
    findings = lint_zone(storage).findings
    assert [f.rule for f in findings] == ["metadata-unknown", *["metadata-invalid"] * 2, "key-null"]
    assert findings[0].fix.startswith("Write keyColumns")
    assert [f.message for f in findings[1:3]] == [
        "fileFormat is 'Avro'.", "fileExtension is 7, not a string.",
    ]  # fmt: skip


def test_what_lasts_is_told_where_it_begins_and_again_where_it_comes_back(storage: Storage):
    zone = Zone(storage)
    whole, lacking, other = {"n": [1], "x": [1]}, {"n": [1]}, {"n": ["a"], "x": [1]}
    files = (whole, lacking, lacking, other, other, whole, lacking, other, {"n": [b""], "x": [1]})
    for number, data in enumerate(files, start=1):
        zone.put(number, data)
    assert [(int(f.file[:20]), f.rule) for f in lint_zone(storage).findings if f.file] == [
        (2, "column-missing"),
        (4, "type-changed"),
        (7, "column-missing"),
        (8, "type-changed"),
        (9, "type-changed"),
    ]


def test_a_gap_says_since_when_and_how_much_waits(storage: Storage):
    zone = Zone(storage)
    for number, days in ((1, 5), (3, 2), (4, 3), (8, 1)):
        zone.put(number)
        zone.age(file_name(number), days)
    first, second = lint_zone(storage).findings
    oldest = storage.list(f"{ZONE}/t").state_of(file_name(4))
    youngest = storage.list(f"{ZONE}/t").state_of(file_name(8))
    assert oldest
    assert youngest
    assert first.message == f"File 2 is missing. 3 files have been waiting since {oldest[:19]}Z."
    assert (
        second.message
        == f"Files 5 to 7 are missing. 1 file has been waiting since {youngest[:19]}Z."
    )
    assert (first.file, second.file) == (file_name(2), file_name(5))


def test_names_that_are_no_text_and_no_decoration(storage: Storage):
    zone = Zone(storage)
    zone.put(1)
    (zone.local / ZONE / "t" / "\udcff\x1b[31m.bin").write_bytes(b"x")
    (found,) = lint_zone(storage).findings
    assert found.file == "\\udcff\x1b[31m.bin"
    result = CliRunner().invoke(cli.app, ["lint", storage.root])
    assert "\x1b" not in result.stdout
    assert r"\x1b[31m.bin" in result.stdout


def test_one_table(storage: Storage):
    zone = Zone(storage)
    zone.storage.delete(f"{ZONE}/{PARTNER_EVENTS}")
    for table in (TableName("s", "a"), TableName("s", "b"), TableName("s", "A")):
        zone.put(2, table=table)
    lake = Lake(storage.root)
    report = lake.lint("s.a")
    assert [(f.rule, f.table) for f in report.findings] == [
        ("folder-case", "s.a"),
        ("number-gap", "s.a"),
    ]
    assert (report.tables, report.files) == (1, 1)
    with pytest.raises(TableNotFoundError):
        lake.lint("s.c")


def test_many_files_are_told_of_one_by_one_and_in_order(storage: Storage):
    zone = Zone(storage)
    for number in range(1, 131):
        zone.put(number, {"id": [1], MARKER: [4 if number % 50 == 0 else 0]})
    heard = []
    report = lint_zone(storage, on_file=lambda *what: heard.append(what))
    assert heard == [(TableName(None, "t"), done, 130) for done in range(1, 131)]
    assert [f.file for f in report.findings] == [file_name(50), file_name(100)]
    assert report.files == 130


def everything_below(root: Path) -> dict[str, Any]:
    return {
        str(path): (path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in sorted(root.rglob("*"))
    }


def test_a_run_changes_nothing_and_starts_no_spark(storage: Storage):
    zone = Zone(storage)
    clean_mirrored(zone)
    text_file("id,n\n1,x\n", zone)
    zone.put(9, {"id": [None], MARKER: ["x"]}, TableName("s", "u"))
    before = everything_below(zone.local)
    code = (
        "import sys; from mirrorlake import Lake; found = Lake(sys.argv[1]).lint().findings; "
        "print(len(found), sorted({'pyspark', 'py4j'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, storage.root], capture_output=True, text=True, check=True
    )
    count, modules = done.stdout.split(maxsplit=1)
    assert int(count) == len(lint_zone(storage).findings) > 3
    assert modules.strip() == "[]"
    assert everything_below(zone.local) == before


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, ["lint", *arguments])
    return result.exit_code, result.stdout


def test_the_command(storage: Storage):
    zone = Zone(storage)
    zone.put(1)
    assert run(storage.root) == (0, "0 errors and 0 warnings in 1 table, 1 file read\n")
    assert run(storage.root, "--json") == (0, '{\n  "findings": []\n}\n')
    zone.put(2, {"id": [1]})
    status, text = run(storage.root)
    assert status == 0  # a warning is no reason to stop
    assert text.startswith("warning column-missing t: Column 'item' is missing")
    assert "0 errors and 1 warning in 1 table, 2 files read" in text
    zone.put(3, {"id": [1, 2], "item": ["a", "b"], MARKER: [0, 3]})
    status, text = run(storage.root, "--json", "--table", "t")
    assert status == 1
    warning, error = json.loads(text)["findings"]
    assert warning["rule"] == "column-missing"
    assert error == {
        "rule": "marker-value",
        "severity": "error",
        "table": "t",
        "file": THIRD,
        "row": 2,
        "column": MARKER,
        "message": "Unknown row marker 3.",
        "fix": "Write 0 for an insert, 1 for an update, 2 for a delete, 4 for an upsert."
        f" Or skip the file ({PROGRAM} skip ROOT t 3 --apply).",
    }
    assert f"[file {THIRD}, row 2, column {MARKER}] Fix: Write 0 for" in run(storage.root)[1]


def test_the_fix_of_an_error_has_the_command_that_skips_the_file(storage: Storage):
    zone = Zone(storage)
    zone.metadata(KEYED | {"fileDetectionStrategy": "LastUpdateTimeFileDetection"})
    zone.put("my file.parquet", {"id": [None], "item": ["a"], MARKER: [4]})
    (found,) = lint_zone(storage).findings
    assert "keep its modification time (touch -r)" in found.fix
    assert found.fix.endswith(" skip ROOT t 'my file.parquet' --apply).")
    zone.metadata(KEYED)
    storage.delete(f"{ZONE}/t/my file.parquet")
    zone.put(2)
    found = next(one for one in lint_zone(storage).findings if one.rule == "number-gap")
    assert found.fix.endswith(" skip ROOT t 1 --apply).")
    options.skip(storage, TableName(None, "t"), 1, apply=True)
    assert [one.rule for one in lint_zone(storage).findings if one.rule == "number-gap"] == []


def test_the_documents_own_sample_is_no_problem(storage: Storage):
    zone = Zone(storage)
    zone.metadata({"keyColumns": ["EmployeeID"]})
    zone.put(1, {
        MARKER: [0, 0, 0, 1],
        "EmployeeID": ["E0001", "E0002", "E0003", "E0001"],
        "EmployeeLocation": ["Redmond", "Redmond", "Redmond", "Bellevue"],
    })  # fmt: skip
    status, text = run(storage.root)
    assert status == 0
    assert text.startswith("information marker-not-last t: ")
    assert text.endswith("0 errors and 0 warnings in 1 table, 1 file read\n")


def test_a_report_shows_the_same_facts_everywhere(storage: Storage):
    Zone(storage).put(2)
    report = Lake(storage.root).lint()
    assert repr(report) == "1 error and 0 warnings in 1 table, 1 file read"
    assert report.errors == report.findings
    assert report.warnings == ()
    assert "number-gap" in report._repr_html_()
    assert report.errors[0].fix in report._repr_html_()
    assert report.shown().rows[0][:4] == ("error", "number-gap", "t", FIRST)


ROWS = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, None]), st.sampled_from([0, 1, 2, 4, 0, 4, 3, None])),
    max_size=12,
)


@examples(20)
@given(
    files=st.lists(st.tuples(ROWS, st.integers(1, 5)), min_size=1, max_size=6),
    keys=st.booleans(),
    upsert=st.booleans(),
)
def test_rows_as_a_plain_loop_finds_them(tmp_path_factory, files, keys, upsert):
    storage = Storage(tmp_path_factory.mktemp("lake"))
    zone = Zone(storage)
    document = {"isUpsertDefaultRowMarker": upsert} | (KEYED if keys else {})
    zone.metadata(document)
    expected = set()
    for number, (rows, group) in enumerate(files, start=1):
        ids, markers = [row[0] for row in rows], [row[1] for row in rows]
        data = {"id": pa.array(ids, pa.int64()), MARKER: pa.array(markers, pa.int32())}
        zone.put(number, data, row_group_size=group)
        allowed = {0, 1, 2, 4} | ({None} if upsert else set())
        unknown = [i for i, marker in enumerate(markers, start=1) if marker not in allowed]
        needing = [i for i, m in enumerate(markers, start=1) if m in allowed - {0}]
        nulls = [i for i, key in enumerate(ids, start=1) if key is None]
        if unknown:
            expected.add((number, "marker-value", unknown[0]))
        if needing and not keys:
            expected.add((number, "key-undeclared", needing[0]))
        if nulls and keys:
            expected.add((number, "key-null", nulls[0]))
    report = lint_zone(storage)
    assert {(int(f.file[:20]), f.rule, f.row) for f in report.errors if f.file} == expected
    # The mirror's own check refuses the very same files.
    metadata = TableMetadata.parse(json.dumps(document).encode())
    for number in range(1, len(files) + 1):
        path = f"{ZONE}/t/{file_name(number)}"
        if number in {number for number, _, _ in expected}:
            with pytest.raises(MirrorlakeError):
                check.inspect_file(storage, path, metadata)
        else:
            check.inspect_file(storage, path, metadata)
