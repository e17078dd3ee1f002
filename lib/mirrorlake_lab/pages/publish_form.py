"""The publish form: choose a file, preview its rows, choose keys and marker, check, publish.

It calls the same function as the command `publish`, so the published file is the same. The form
publishes only a file that has passed the check with the same choices.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from mirrorlake.errors import UsageError
from mirrorlake.landing.metadata import read_metadata
from mirrorlake.landing.publisher import Published
from mirrorlake.landing.sources import open_source
from mirrorlake.names import as_table
from mirrorlake.results import TextTable, counted
from mirrorlake_lab.pages import html
from mirrorlake_lab.pages.controls import Guarded, label, slice_rows

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

UNCHANGED = "as in the file"
MARKERS = (UNCHANGED, "insert", "update", "delete", "upsert")
ENDINGS = (".parquet", ".csv", ".csv.gz")


class PublishForm(Guarded):
    """A form that publishes files into tables of a lake.

    Args:
        lake: the lake.
        table: the table to select first; it need not exist.
    """

    def __init__(self, lake: Lake, table: str = "") -> None:
        super().__init__()
        self.lake = lake
        self._scratch = TemporaryDirectory()
        self._file: Path | None = None
        self._checked: tuple[Any, ...] | None = None
        self.upload = widgets.FileUpload(
            accept=",".join(ENDINGS), multiple=False, description="Choose a file"
        )
        self.path = widgets.Text(placeholder="exports/stock.csv", **label("or its path", "28em"))
        self.table = widgets.Text(value=table, **label("Table", "22em"))
        self.keys = widgets.SelectMultiple(rows=5, **label("Keys", "22em"))
        self.marker = widgets.Dropdown(options=MARKERS, **label("Change of every row", "22em"))
        self.check_button = widgets.Button(
            description="Check", tooltip="Check the file; nothing is published"
        )
        self.publish_button = widgets.Button(
            description="Publish", tooltip="Publish the file to the landing zone", disabled=True
        )
        self.shown = widgets.HTML()
        self.upload.observe(lambda _: self.guard(self._take_upload), "value")
        self.path.observe(lambda _: self.guard(self._take_path), "value")
        self.path.continuous_update = False
        self.table.continuous_update = False
        self.table.observe(lambda _: self.guard(self._declared), "value")
        for field in (self.keys, self.marker):
            field.observe(lambda _: self._unchecked(), "value")
        self.check_button.on_click(lambda _: self.guard(self.check))
        self.publish_button.on_click(lambda _: self.guard(self.publish))
        files = widgets.HBox([self.upload, self.path], layout={"flex_flow": "row wrap"})
        choices = widgets.HBox([self.table, self.keys, self.marker])
        choices.layout.flex_flow = "row wrap"
        buttons = widgets.HBox([self.check_button, self.publish_button])
        parts = [files, choices, buttons, self.message, self.shown]
        self.widget = widgets.VBox(parts, layout={"max_width": "100%"})

    def __repr__(self) -> str:
        return f"PublishForm({self.lake.storage.root!r})"

    def take(self, file: str | Path) -> None:
        """Select a file, and show its first rows and its columns.

        Args:
            file: a Parquet or CSV file.

        Raises:
            UsageError: the file does not exist, or has another extension.
            DataFileError: the file can't be read.

        Example:
            >>> publish_form(lake, "stock").take("exports/stock.csv")  # doctest: +SKIP
        """
        self._unchecked()
        self._file = path = Path(file).expanduser()  # also of a bad file: Check repeats its error
        self.keys.options, self.shown.value = (), ""
        self._check_file(path)
        source: Any = open_source(path)
        rows = slice_rows(source)
        self.keys.options = [(html.plain_text(name), name) for name in source.schema.names]
        self._declared()
        self.shown.value = html.view(
            html.table(rows, caption=f"The first rows of {path.name}", data=True)
        )

    def check(self) -> Published:
        """Check the file as the mirror will, and enable the button Publish if it is valid.

        Returns:
            The rows and columns that would be published.

        Raises:
            MirrorlakeError: the file is not valid; the error has the row, column and fix.

        Example:
            >>> publish_form(lake, "stock").check()  # doctest: +SKIP
        """
        self._unchecked()
        found = self._run(dry_run=True)
        self._checked = self._choices()
        self.publish_button.disabled = False
        told, keys = f"{counted(found.rows, 'row')} would be published.", self.keys.value
        if found.warning:
            told += f" {found.warning}"
            if self.marker.value == UNCHANGED:
                told += " Choose upsert to replace such rows."
        elif not (keys := keys or self._declared_keys()):
            told += (
                f" No key is chosen, so rows of {found.table} can only be inserted. Choose the"
                " columns that identify a row to update, replace or delete rows."
            )
        self.show_message(told, "good" if keys and not found.warning else "warn")
        columns = TextTable(("column", "type"), tuple(found.columns.items()))
        self.shown.value = html.view(html.table(columns, caption="The columns and their types"))
        return found

    def publish(self) -> Published:
        """Publish the checked file, once.

        Returns:
            The published file and its rows.

        Raises:
            UsageError: the file or the choices have changed since the check.

        Example:
            >>> publish_form(lake, "stock").publish()  # doctest: +SKIP
        """
        if self._checked is None or self._checked != self._choices():
            raise UsageError(
                "The file has not been checked with these choices.", hint="press Check."
            )
        self._unchecked()
        done = self._run(dry_run=False)
        findings = self.lake.lint(done.table)
        self.show_message(f"Published: {done!r}; lint of its folder: {findings!r}.", "good")
        if findings.findings:
            shown = findings.shown()
            cut = TextTable(shown.columns, shown.rows[:20])
            self.shown.value = html.view(html.table(cut, caption="Findings in the folder"))
        return done

    def _run(self, *, dry_run: bool) -> Published:
        _, table, keys, marker = self._choices()
        if self._file is None or not table:
            raise UsageError("The form needs a file and a table.", hint="fill in both.")
        self._check_file(self._file)
        publisher = self.lake.publisher(table, keys=list(keys), dry_run=dry_run)
        return publisher.publish(self._file, "" if marker == UNCHANGED else marker)

    def _check_file(self, path: Path) -> None:
        """Refuse a file that does not exist or has another extension."""
        if not path.is_file():
            raise UsageError(f"There is no file {path}.", hint="choose an existing file.")
        if not path.name.lower().endswith(ENDINGS):
            raise UsageError(
                f"{path.name} can't be published.",
                hint=f"choose a file with the extension {', '.join(ENDINGS)}.",
            )

    def _choices(self) -> tuple[Any, ...]:
        file: tuple[Any, ...] = ()
        if self._file is not None and self._file.is_file():
            stat = self._file.stat()
            file = (str(self._file), stat.st_size, stat.st_mtime_ns)
        return file, self.table.value.strip(), tuple(self.keys.value), self.marker.value

    def _declared(self) -> None:
        """Select the key columns that the table's folder declares."""
        self._unchecked()
        declared = self._declared_keys()
        known = {name.lower(): name for _, name in self.keys.options}
        if declared and all(key.lower() in known for key in declared):
            self.keys.value = tuple(known[key.lower()] for key in declared)

    def _declared_keys(self) -> tuple[str, ...]:
        name = self.table.value.strip()
        return read_metadata(self.lake.storage, as_table(name)).keys if name else ()

    def _take_upload(self) -> None:
        for one in self.upload.value:
            name = Path(
                str(one["name"]).replace("\\", "/")
            ).name  # without folders, so that it can't leave the scratch folder
            target = Path(self._scratch.name) / name
            target.write_bytes(bytes(one["content"]))
            self.take(target)

    def _take_path(self) -> None:
        if self.path.value.strip():
            self.take(self.path.value.strip())

    def _unchecked(self) -> None:
        self._checked = None
        self.publish_button.disabled = True
        self.message.value = ""

    def on_error(self) -> None:
        """Discard the check after an error."""
        self._unchecked()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """Return the form, and for exported reports its description."""
        return {**self.widget._repr_mimebundle_(**options), "text/plain": repr(self)}
