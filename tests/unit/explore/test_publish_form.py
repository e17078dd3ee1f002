"""The publish form: publishes the same file as the command, and nothing of an invalid file."""

from __future__ import annotations

import re
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from helpers.html_tags import Tags
from mirrorlake import Lake
from mirrorlake.errors import UsageError
from mirrorlake_lab import publish_form


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "stock.csv"
    path.write_text("id,item\n1,bolt\n2,<b>nut</b>\n", encoding="utf-8")
    return path


def uploaded(form: Any, name: str, content: bytes) -> None:
    one = {"name": name, "type": "text/csv", "size": len(content), "content": memoryview(content)}
    form.upload.value = (one | {"last_modified": datetime.now(timezone.utc)},)


def zone(lake: Lake) -> list[Path]:
    return [path for path in lake.storage.local.rglob("*") if path.is_file()]


def published(lake: Lake, number: int = 1) -> Path:
    return Path(lake.storage.path(f"Files/LandingZone/stock/{number:020d}.parquet"))


def comparable(path: Path) -> Any:
    """Return the file's rows, columns, footer without the id of the batch, and size."""
    footer = {k: v for k, v in pq.read_metadata(path).metadata.items() if b"batch" not in k}
    found = pq.read_table(path)
    kinds = [(field.name, field.type) for field in found.schema]
    return found.to_pylist(), kinds, footer, path.stat().st_size


def test_the_check_warns_of_rows_that_may_be_there_twice(lake: Lake, source: Path) -> None:
    lake.publisher("stock", keys=["id"]).publish(source)
    form = publish_form(lake, "stock")
    form.take(source)
    form.check_button.click()
    assert "have no marker" in form.message.value
    assert "Choose upsert" in form.message.value
    form.marker.value = "upsert"
    form.check_button.click()
    assert "have no marker" not in form.message.value


def test_the_check_warns_if_no_key_is_chosen(lake: Lake, source: Path) -> None:
    form = publish_form(lake, "stock")
    form.take(source)
    form.check()
    assert "No key is chosen" in form.message.value
    form.keys.value = ("id",)
    form.check()
    assert "key" not in form.message.value
    lake.publisher("stock", keys=["id", "gone"]).upsert([{"id": 1, "gone": 1, "item": "x"}])
    form.keys.value = ()
    form.marker.value = "delete"
    form.guard(form.check)
    assert "No key is chosen" not in form.message.value  # the folder declares keys


def test_the_check_warns_of_a_new_column(lake: Lake, source: Path) -> None:
    lake.publisher("stock", keys=["id"]).upsert([{"id": 1, "itm": "x"}])
    form = publish_form(lake, "stock")
    form.take(source)
    form.marker.value = "update"
    form.check()
    assert "The update adds the column" in form.message.value
    assert "missing; it becomes NULL" in form.message.value
    assert "Send all columns" in form.message.value
    assert "upsert" not in form.message.value


def test_the_check_names_a_repeated_key_and_another_separator(lake: Lake) -> None:
    form = publish_form(lake, "stock")
    uploaded(form, "stock.csv", b"id,item\n1,a\n1,b\n")
    form.keys.value = ("id",)
    form.check()
    assert "Rows 1 and 2 have the same key (id=1)" in form.message.value
    assert "Choose upsert" in form.message.value
    uploaded(form, "other.csv", b"id;inserted\n1;a\n")
    form.guard(form.check)
    assert "commas must separate" in form.message.value
    assert "upsert" not in form.message.value


def test_it_publishes_what_the_command_publishes(lake: Lake, source: Path, tmp_path: Path) -> None:
    form = publish_form(lake, "stock")
    uploaded(form, source.name, source.read_bytes())
    assert Tags(form.shown.value).tags.isdisjoint({"b"})
    assert "&lt;b&gt;nut" in form.shown.value
    form.keys.value = ("id",)
    form.marker.value = "upsert"
    assert form.publish_button.disabled
    form.check_button.click()
    assert "2 rows would be published" in form.message.value
    assert zone(lake) == []
    form.publish_button.click()
    assert form.publish_button.disabled
    other = Lake(tmp_path / "other")
    other.publisher("stock", keys=["id"]).upsert(source)
    assert comparable(published(lake)) == comparable(published(other))
    names = [path.relative_to(lake.storage.local) for path in zone(lake)]
    assert sorted(names) == sorted(p.relative_to(other.storage.local) for p in zone(other))
    form.publish_button.click()
    assert len(zone(lake)) == len(names)  # a second click publishes nothing


def test_values_are_shown_as_they_will_be_published_and_then_their_types(lake: Lake) -> None:
    form = publish_form(lake, "stock")
    uploaded(form, "stock.csv", b"zip,price\n01234,1.50\n")
    assert re.findall(r"<td[^>]*>(.*?)</td>", form.shown.value) == ["1", "01234", "1.5"]
    form.check_button.click()
    cells = re.findall(r"<td[^>]*>(.*?)</td>", form.shown.value)
    assert cells == ["zip", "string", "price", "double"]


def test_a_bad_file_is_refused_with_its_place_and_nothing_is_there(lake: Lake) -> None:
    form = publish_form(lake, "stock")
    uploaded(form, "bad.csv", b"id,item\n1,bolt\n,nut\n")
    form.keys.value = ("id",)
    form.check_button.click()
    assert "row 2" in form.message.value
    assert "column id" in form.message.value
    assert form.publish_button.disabled
    with pytest.raises(UsageError, match="not been checked"):
        form.publish()
    assert zone(lake) == []


def test_other_choices_have_to_be_checked_again(lake: Lake, source: Path) -> None:
    form = publish_form(lake, "stock")
    form.path.value = str(source)
    form.keys.value = ("id",)
    form.check()
    form.marker.value = "delete"
    assert form.publish_button.disabled
    form.check()
    source.write_text("id,item\n7,other\n", encoding="utf-8")
    with pytest.raises(UsageError, match="not been checked"):
        form.publish()
    assert zone(lake) == []


def test_declared_keys_are_taken_over(lake: Lake, source: Path) -> None:
    lake.publisher("stock", keys=["ID"]).upsert([{"ID": 9, "item": "x"}])
    form = publish_form(lake, "stock")
    form.take(source)
    assert form.keys.value == ("id",)


def test_a_key_of_a_wide_file_can_be_any_column(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"c{n}" for n in range(30)) + "\n" + ",".join("1" * 30) + "\n")
    form = publish_form(lake, "wide")
    form.take(path)
    assert "and 10 more columns" in form.shown.value
    form.keys.value = ("c29",)
    form.check()
    form.publish()
    assert lake.publisher("wide").keys == ("c29",)


@pytest.mark.parametrize("name", ["../../evil.csv", "..\\evil.csv", "/etc/evil.csv"])
def test_an_uploaded_name_leaves_no_folder(lake: Lake, name: str, tmp_path: Path) -> None:
    form = publish_form(lake, "stock")
    uploaded(form, name, b"id\n1\n")
    assert form._file is not None
    assert form._file.parent == Path(form._scratch.name)
    assert "evil.csv" in form.shown.value


def test_what_can_not_be_published_is_said(lake: Lake, tmp_path: Path) -> None:
    form = publish_form(lake)
    form.path.value = str(tmp_path / "missing.csv")
    assert "missing.csv. Hint: choose an existing file." in form.message.value
    (tmp_path / "x.xlsx").write_bytes(b"PK")
    form.path.value = str(tmp_path / "x.xlsx")
    assert "x.xlsx can&#x27;t be published" in form.message.value
    shutil.copyfile(__file__, tmp_path / "x.parquet")
    form.path.value = str(tmp_path / "x.parquet")
    assert "not a readable Parquet file" in form.message.value
    form.check_button.click()
    assert "needs a file and a table" in form.message.value
    form.table.value = "stock"
    for content, said in ((b"id;price\n1;2,5\n", "commas between the values"), (b"", "Hint: ")):
        uploaded(form, "other.csv", content)
        assert said in form.message.value
        before = form.message.value
        form.check_button.click()
        assert form.message.value == before
    form.path.value = str(tmp_path / "gone.csv")
    form.check_button.click()
    assert "gone.csv. Hint: choose an existing file." in form.message.value
    (tmp_path / "x.xlsx").touch()
    form.path.value = str(tmp_path / "x.xlsx")
    form.check_button.click()
    assert "x.xlsx can&#x27;t be published" in form.message.value
    form.table.value = "../x"
    form.check_button.click()
    assert zone(lake) == []
