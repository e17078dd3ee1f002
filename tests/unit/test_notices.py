"""Log records are printed to stderr, unless the application has logging handlers."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import io, logging, sys
from mirrorlake.notices import show_notices
{before}
show_notices()
show_notices()
logging.getLogger("mirrorlake.spark.jars").info("fetching %s", "jars")
logging.getLogger("mirrorlake").debug("details")
{after}
"""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", "mirrorlake: fetching jars\n"),
        ("logging.basicConfig(level='INFO', format='%(name)s %(message)s')", "",
         "mirrorlake.spark.jars fetching jars\n"),
        ("logging.basicConfig(level='WARNING')", "", ""),
        ("logging.getLogger('mirrorlake').addHandler(logging.NullHandler())", "", ""),
        ("", "old, sys.stderr = sys.stderr, io.StringIO();"
         "logging.getLogger('mirrorlake').info('into the cell'); sys.stderr = old",
         "mirrorlake: fetching jars\n"),
        ("", "try: raise KeyboardInterrupt\nexcept KeyboardInterrupt: logging.exception('sending')",
         "mirrorlake: fetching jars\n"),
    ],
)  # fmt: skip
def test_where_they_go(before: str, after: str, expected: str) -> None:
    program = PROGRAM.format(before=before, after=after)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", expected)
