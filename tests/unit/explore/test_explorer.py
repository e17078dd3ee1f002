"""The explorer without a browser: all tabs of all tables, paging, hostile names, no Spark."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path

import nbformat
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from nbconvert import HTMLExporter
from traitlets.config import Config

from helpers.html_tags import Tags
from helpers.old_lake import unpack
from helpers.project import PROJECT
from mirrorlake import Lake, results
from mirrorlake.delta.commits import Commit
from mirrorlake.errors import MetadataError, TableNotFoundError, UsageError
from mirrorlake.feed import doctor
from mirrorlake.feed.changes import COLUMNS, Changes, FeedReport
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage
from mirrorlake_lab import explore
from mirrorlake_lab.pages import controls, html, table_tabs

TITLES = ("Zone", "Tables", "Versions", "Rows", "Feed", "Files", "Views", "Runs")
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(unpack(tmp_path_factory.mktemp("explored")))


@pytest.fixture
def many(tmp_path: Path) -> Lake:
    """A table of 120 versions with a hostile name, column and partition value."""
    place = tmp_path / "Tables" / EVIL
    for number in range(3):
        rows = pa.table({"id": [number], EVIL: ["<b>x</b>"], "part": [f"<i>{number}"]})
        write_deltalake(place, rows, mode="append", partition_by=["part"])
    commit = (place / "_delta_log" / f"{2:020d}.json").read_text(encoding="utf-8")
    for version in range(3, 120):
        text = commit.replace("part-0", f"part-{version}-0")
        (place / "_delta_log" / f"{version:020d}.json").write_text(text, encoding="utf-8")
    return Lake(tmp_path)


def shown(widget: object) -> str:
    """Return the HTML of a widget and of its children."""
    inner = getattr(widget, "children", ())
    own = getattr(widget, "value", "")
    return (own if isinstance(own, str) else "") + "".join(map(shown, inner))


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_every_tab_shows_every_table(old: Lake, step: int) -> None:
    before = {path: path.stat().st_mtime_ns for path in old.storage.local.rglob("*")}
    explorer = explore(old)
    assert tuple(tab.title for tab in explorer.tabs) == TITLES
    for name in old.tables()[::step]:
        explorer.choose(name)
        for title in TITLES:
            tab = explorer.open(title)
            assert "bad" not in tab.message.value, (name, title, tab.message.value)
            assert shown(tab.widget) or title == "Rows"  # it only has fields to fill in
    assert {p: p.stat().st_mtime_ns for p in old.storage.local.rglob("*")} == before


def test_a_lake_can_be_given_by_its_root(tmp_path: Path) -> None:
    Lake(tmp_path).publisher("stock").insert([{"n": 1}])
    assert explore(str(tmp_path)).lake.storage.root == str(tmp_path)
    with pytest.raises(UsageError, match="nowhere"):
        explore(str(tmp_path / "nowhere"))


def test_a_step_shows_what_history_says(old: Lake) -> None:
    explorer = explore(old)
    explorer.choose("inventory")
    tab = explorer.open("Versions")
    newest = old.table("inventory").version
    assert tab.slider.value == tab.slider.max == newest
    for row in old.table("inventory").history(newest + 1).shown().rows:
        tab.slider.value = row[0]
        page = tab.shown.value
        assert f"<td>{row[1]} UTC</td>" in page
        assert f"<td>{row[2]}</td>" in page
    tab.step(-1)
    assert tab.slider.value == tab.slider.min
    tab.step(newest + 5)
    assert tab.slider.value == newest


def test_a_version_without_counted_rows_is_a_gap() -> None:
    commits = [Commit(0, operation="CREATE TABLE"), Commit(1, operation="SOMETHING NEW")]
    created, unknown = table_tabs.draw_strip(commits, 0).split("<rect ")[1:]
    assert "0 rows changed" in created
    assert 'fill="transparent"' in unknown
    assert "SOMETHING NEW, not counted" in unknown


def test_names_columns_and_values_from_outside_stay_text(many: Lake) -> None:
    explorer = explore(many)
    pages = []
    for title in TITLES:
        tab = explorer.open(title)
        assert "bad" not in tab.message.value, tab.message.value
        pages.append(shown(tab.widget))
    pages += [explorer.to_html(), explorer._repr_mimebundle_()["text/html"]]
    found = Tags("".join(pages))
    assert not found.tags & {"img", "script", "i", "b"} - {"i"}
    assert not any(name.startswith("on") for name in found.attributes)
    assert all(html.text(EVIL) in page for page in pages[-2:])
    assert "onclick" in Tags(table_tabs.copyable('x" onmouseover="alert(1)')).attributes
    assert "onmouseover" not in Tags(table_tabs.copyable('x" onmouseover="alert(1)')).attributes


def test_long_lists_are_read_by_page(many: Lake) -> None:
    explorer = explore(many)
    tab = explorer.open("Versions")
    began = time.process_time()
    tab.step(-60)
    assert time.process_time() - began < 0.3
    assert tab.slider.value == 59
    pager = tab._all
    assert "119" in pager.shown.value
    for _ in range(4):
        pager.turn(1)
    assert pager.shown.value.count("<tr>") == 21
    assert "101 to 120 of 120" in pager._where.value
    pager.turn(-9)
    assert pager.start == 0
    files = explorer.open("Files")
    files.read_footers()
    assert (
        "can&#x27;t be read" in files.message.value
    )  # the files of the copied commits do not exist


def test_a_pager_asks_for_no_more_than_a_page() -> None:
    asked = []

    def fetch(start: int, stop: int) -> results.TextTable:
        asked.append((start, stop))
        if start >= 90:
            raise OSError("the store is unavailable")
        return results.TextTable(("n",), tuple((n,) for n in range(start, stop)), more=stop < 90)

    group = controls.Guarded()
    pager = group.pager("Numbers", size=30)
    assert pager.widget.layout.display == "none"  # no buttons before there are rows
    pager.fill(100_000, fetch)
    assert pager.widget.layout.display == ""
    pager.turn(1)
    assert asked == [(0, 30), (30, 60)]
    pager.fill(None, fetch, "Other numbers")
    assert "<caption>Other numbers</caption>" in pager.shown.value
    pager.turn(1)
    assert not pager._next.disabled
    pager.turn(1)
    assert pager._next.disabled
    pager._next.click()
    assert "OSError: the store is unavailable" in group.message.value
    assert pager.start == 60


def test_the_zone_shows_findings_and_the_rows_of_a_bad_file(lake: Lake) -> None:
    stock = lake.publisher("stock", keys=["id"])
    stock.upsert([{"id": number, "item": f"<u>{number}"} for number in range(1, 40)])
    bad = Path(lake.storage.path("Files/LandingZone/stock/00000000000000000002.csv"))
    bad.write_text("id,item,__rowMarker__\n1,a,4\n,b,4\n", encoding="utf-8")
    explorer = explore(lake)
    zone = explorer.open("Zone")
    assert explorer.picker.value is None
    zone.lint()
    assert (zone.file.value, zone.row.value) == (bad.name, 2)
    zone.read_rows()
    assert "<td>b</td>" in zone._rows.value
    stock_name = TableName(None, "stock")
    rows = controls.preview_rows(lake.storage, stock_name, "00000000000000000001.parquet", 30)
    assert [row[0] for row in rows.rows] == list(range(25, 40))
    metadata = Path(lake.storage.path("Files/LandingZone/stock/_metadata.json"))
    metadata.write_text("{", encoding="utf-8")
    assert controls.preview_rows(lake.storage, stock_name, "00000000000000000001.parquet").rows
    with pytest.raises(MetadataError):
        controls.preview_rows(lake.storage, stock_name, bad.name)
    zone.file.value = "../../_partnerEvents.json"
    zone.read_rows()
    assert "Choose one" in zone.message.value
    tables = explorer.open("Tables")
    assert "no Delta tables yet" in tables.message.value


def test_texts_of_a_published_file_are_shown_as_they_are_written(lake: Lake) -> None:
    lake.publisher("stock", keys=["id"]).upsert([{"id": 1}])
    folder = Path(lake.storage.path("Files/LandingZone/stock"))
    (folder / "_metadata.json").write_text(
        '{"keyColumns": ["id"], "fileFormat": "DelimitedText",'
        ' "FileFormatTypeProperties": {"ColumnSeparator": ";"}}',
        encoding="utf-8",
    )
    written = ("01234", "2026-03-01", "1.50", "x")
    text = f"id;day;price;__rowMarker__\r\n{';'.join(written)}\r\n"
    (folder / "00000000000000000002.csv").write_bytes(text.encode())
    zone = explore(lake).open("Zone")
    zone.file.value = "00000000000000000002.csv"
    zone.read_rows()
    for value in written:  # also a marker that the mirror refuses
        assert f">{value}</td>" in zone._rows.value


def test_views_link_what_comes_from_what(old: Lake) -> None:
    definitions = old.views.list()
    if not definitions:
        pytest.skip("the old lake has no views")
    view = definitions[0]
    explorer = explore(old, view.name)
    tab = explorer.open("Views")
    (link,) = (w for w in tab._lineage.children[0].children[1:2])
    link.click()
    assert explorer.picker.value in view.sources


def test_a_table_that_is_not_there_is_said(old: Lake) -> None:
    with pytest.raises(TableNotFoundError, match="no table nothing"):
        explore(old, "nothing")
    with pytest.raises(TableNotFoundError, match="did you mean inventory"):
        explore(old, "inventroy")
    assert str(explore(old, " Inventory").picker.value) == "inventory"
    with pytest.raises(UsageError, match=r"no tab 'versions'.* Hint: choose one of Zone, Tables"):
        explore(old).open("versions")
    explorer = explore(old, "inventory")
    assert str(explorer.picker.value) == "inventory"
    with pytest.raises(TableNotFoundError, match="did you mean inventory"):
        explorer.choose("inventroy")
    assert str(explorer.picker.value) == "inventory"
    explorer.refresh()
    assert str(explorer.picker.value) == "inventory"


def test_a_table_that_is_new_can_be_chosen(many: Lake) -> None:
    explorer = explore(many)
    write_deltalake(Path(many.storage.path("Tables/later")), pa.table({"id": [1]}))
    explorer.choose("Later")
    assert str(explorer.picker.value) == "later"


def test_the_first_view_needs_no_spark(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "Tables" / "t", pa.table({"id": [1]}))
    program = (
        "import sys; from mirrorlake import Lake; from mirrorlake_lab import explore\n"
        "e = explore(Lake(sys.argv[1]))\n"
        "for title in ('Zone', 'Versions', 'Rows', 'Feed', 'Files', 'Runs'): e.open(title)\n"
        "sys.exit('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == 0


def test_an_exported_report_shows_the_twin(many: Lake) -> None:
    explorer = explore(many)
    output = nbformat.v4.new_output("execute_result", data=explorer._repr_mimebundle_())
    cell = nbformat.v4.new_code_cell("explore(lake)", outputs=[output])
    notebook = nbformat.v4.new_notebook(cells=[cell])
    body, _ = HTMLExporter(embed_images=True).from_notebook_node(notebook)
    assert "What can be read" in body
    assert html.text(EVIL) in body
    assert EVIL not in body


def test_an_export_with_the_state_of_widgets_needs_the_option_of_the_page(many: Lake) -> None:
    """By default nbconvert then prefers the widgets, which scripts of another host draw."""
    bundle = explore(many)._repr_mimebundle_()
    output = nbformat.v4.new_output("execute_result", data=bundle)
    cell = nbformat.v4.new_code_cell("explore(lake)", outputs=[output])
    model = bundle["application/vnd.jupyter.widget-view+json"]["model_id"]
    state = {"version_major": 2, "version_minor": 0, "state": {model: {"state": {}}}}
    widgets = {"application/vnd.jupyter.widget-state+json": state}
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": widgets})
    page = (PROJECT / "docs" / "explore.md").read_text(encoding="utf-8")
    ((kind, name),) = re.findall(r"--(\w+)\.(\w+)=True", page)
    for config, is_shown in ((Config(), False), (Config({kind: {name: True}}), True)):
        body, _ = HTMLExporter(config=config).from_notebook_node(notebook)
        assert ("What can be read" in body) == is_shown


def test_years_of_data_have_no_separators_and_counts_do() -> None:
    rows = results.TextTable(("year", "late"), ((2013, True), (2014, None)))
    assert "2013</td>" in html.table(rows, data=True)
    assert "true</td>" in html.table(rows, data=True)
    assert "2,013</td>" in html.table(rows)
    money = results.TextTable(("price",), ((1234567.89,),))
    assert ">1234567.89</td>" in html.table(money, data=True)
    assert ">1,234,567.89</td>" in html.table(money)


def test_runs_of_the_lake_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path))
    for day, root in ((1, "own"), (2, str(tmp_path / "own")), (3, "other"), (4, "")):
        steps = [{"notebook": "mirror", "status": "done", "parameters": {"root": root}}]
        record = {"run": f"r{day}", "plan": "p", "status": "done", "folder": "x", "steps": steps}
        place = tmp_path / "runs" / f"r{day}"
        place.mkdir(parents=True)
        record["started"] = f"2026-01-0{day}T00:00:00+00:00"
        (place / "run.json").write_text(json.dumps(record), encoding="utf-8")
    lake = Lake(tmp_path / "own")
    lake.publisher("stock", keys=["id"]).upsert([{"id": 1}])
    explorer = explore(lake)
    tab = explorer.open("Runs")
    assert [run for _, run in tab.run.options] == ["r2", "r1", "r4", "r3"]
    assert tab._list.shown.value.count("this one") == 2
    assert tab.run.value == "r2"
    assert "Steps of r2" in tab._steps.value
    tab.run.value = "r4"
    explorer.refresh()
    assert tab.run.value == "r4"
    assert "Steps of r4" in tab._steps.value
    assert explorer.to_html().index(">r1<") < explorer.to_html().index(">r4<")


def test_a_tab_that_is_filled_reads_the_lake_once(
    old: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setting folder, run and version while a tab is filled must not read them again."""
    asked: list[str] = []
    status, listing = Lake.status, Storage.list

    def counted(lake: Lake) -> object:
        asked.append("status")
        return status(lake)

    def listed(storage: Storage, folder: str) -> object:
        asked.append(folder)
        return listing(storage, folder)

    explorer = explore(old)
    monkeypatch.setattr(Lake, "status", counted)
    tab = explorer.open("Zone")
    assert asked == ["status"]
    monkeypatch.setattr(Storage, "list", listed)
    other = next(name for _, name in tab.folder.options if name != tab.folder.value)
    asked.clear()
    tab.folder.value = other
    assert asked == [other.folder]


def test_a_long_file_name_may_break_anywhere(many: Lake) -> None:
    listed = table_tabs.list_files(many.inspect(EVIL).files[:1])
    assert 'class="wide path">part=' in listed.rows[0][0]


def test_decimals_are_shown_without_the_zeros_of_their_type() -> None:
    values = tuple(map(Decimal, ("957539.80000000", "0.12345000", "5.00000", "-7.5", "3", "0E-8")))
    shown = results.TextTable(("n",), tuple((value,) for value in values))
    texts = ["957539.80", "0.12345", "5.00", "-7.5", "3", "0.00"]
    assert [line.strip() for line in repr(shown).splitlines()[1:]] == texts
    for table in (shown._repr_html_(), html.table(shown), html.table(shown, data=True)):
        assert all(f">{text}</td>" in table for text in texts)
    assert shown.document()["rows"][0] == {"n": values[0]}  # the data are unchanged


def test_a_version_that_does_not_exist_is_an_error_with_the_range(old: Lake) -> None:
    tab = explore(old, "inventory").open("Rows")
    newest = old.table("inventory").version
    assert (tab.version.value, tab.before.value, tab.after.value) == (newest, newest - 1, newest)
    for field, work in (
        (tab.version, tab.read),
        (tab.before, tab.compare),
        (tab.after, tab.compare),
    ):
        field.value, chosen = 99, field.value
        tab.guard(work)
        assert "There is no version 99 of inventory" in tab.message.value
        assert f"{newest}" in tab.message.value
        field.value = chosen


def test_rows_and_changes_have_a_caption() -> None:
    assert table_tabs.rows_caption(4, None, 1) == "Rows of version 4: 1 row"
    text = "Rows of version 4, filter n > 2: 2,000 rows"
    assert table_tabs.rows_caption(4, "n > 2", 2000) == text
    assert table_tabs.rows_caption(4, None, 0) == "Rows of version 4"  # the pager adds "none"
    counts = {"update_preimage": 100, "update_postimage": 100, "delete": 50}
    text = "Changes from 1 to 3: 50 removed, 100 changed"
    assert table_tabs.changes_caption(1, 3, counts) == text
    assert table_tabs.changes_caption(1, 1, {}) == "Changes from 1 to 1"


def test_compared_rows_show_keys_that_are_declared_in_another_case(old: Lake) -> None:
    tab = explore(old, "inventory").open("Rows")
    tab._keys = ("ID",)
    names = ("id", *(f"c{number}" for number in range(20)), "_change_type")
    page = tab._narrow(results.TextTable(names, ((*range(21), "insert"),)))
    assert page.columns[:3] == ("_change_type", "id", "c0")
    assert len(page.columns) == 17


def test_a_history_that_is_cut_is_said(old: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = results.TextTable(COLUMNS, ((1, "", "insert", "id 7: n 1"),), more=True)
    rows = results.TextTable(("version",), ((1,),))
    report = FeedReport(
        *("inventory", 1, 1, 1, 1),
        diagnosis=doctor.Diagnosis("inventory", 1, 1, (), ((1, 1),)),
        by_version=rows,
        raw={},
        net={},
        keys=("id",),
        followed="id 7",
        timeline=changes,
    )
    monkeypatch.setattr(Changes, "report", lambda *_args, **_options: report)
    tab = explore(old, "inventory").open("Feed")
    tab.guard(tab.read)
    assert "id 7. Only its first 1 changes are shown." in tab.message.value


def test_equal_values_have_an_order_so_that_pages_do_not_overlap() -> None:
    kinds = [("id", "bigint"), ("tags", "map<string,int>"), ("v", "variant"), ("n", "int")]
    assert table_tabs.tie_breakers(kinds, ("ID",)) == ["id"]
    assert table_tabs.tie_breakers(kinds, ()) == ["id", "n"]
    assert table_tabs.tie_breakers(kinds, ("id", "gone")) == ["id", "n"]
    assert len(table_tabs.tie_breakers([(f"c{n}", "int") for n in range(500)], ())) == 15


def test_timestamps_of_users_are_shown_with_fraction_and_zone() -> None:
    at = datetime(1969, 12, 31, 23, 59, 59, 250_000, timezone.utc)
    rows = results.TextTable(("at",), ((at,), (at.replace(tzinfo=None),)))
    shown = html.table(rows, data=True)
    assert "1969-12-31 23:59:59.250000+00:00</td>" in shown
    assert "1969-12-31 23:59:59.250000</td>" in shown
    assert "59.25" not in html.table(rows)
