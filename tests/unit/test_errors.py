from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

from mirrorlake import errors
from mirrorlake.errors import DataFileError, MirrorlakeError, UsageError


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "Broken."),
        ({"hint": "mend it."}, "Broken. Hint: mend it."),
        ({"file": "f.parquet"}, "Broken. [file f.parquet]"),
        ({"row": 3, "column": "id"}, "Broken. [row 3, column id]"),
        (
            {"column": "id", "row": 3, "file": "f.parquet", "hint": "mend it."},
            "Broken. [file f.parquet, row 3, column id] Hint: mend it.",
        ),
        ({"row": 0, "column": ""}, "Broken. [row 0, column ]"),
    ],
)
def test_text_says_what_then_where_then_the_fix(fields, text):
    assert str(DataFileError("Broken.", **fields)) == text


def test_dict_has_the_keys_of_the_commands_output():
    error = DataFileError("Broken.", file="f.parquet", row=3, column="id", hint="mend it.")
    assert error.as_dict() == {
        "message": "Broken. Hint: mend it.",
        "file": "f.parquet",
        "row": 3,
        "column": "id",
    }


def test_every_error_has_the_one_base_and_a_meaning_of_its_own():
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    assert all(issubclass(c, MirrorlakeError) for c in classes)
    assert len({c.__doc__ for c in classes}) == len(classes)


def test_a_notebook_shows_an_error_as_one_sentence(tmp_path):
    cell = "from mirrorlake.errors import UsageError\nraise UsageError('Broken.', hint='mend it.')"
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "-c", cell],
        env=os.environ | {"IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout + done.stderr == "UsageError: Broken. Hint: mend it.\n"


def test_an_error_has_one_hint() -> None:
    inner = UsageError("No.", hint="do this.")
    assert str(UsageError(f"It failed: {inner}", hint="do that.")).count("Hint: ") == 1
