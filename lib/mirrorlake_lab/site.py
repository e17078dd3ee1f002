"""Build the documentation's site with Sphinx; a warning, such as a dead link, is an error.

`docs/conf.py` has the settings, and `docs/_ext` writes the pages that the code generates.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorlake.errors import CheckError, UsageError
from mirrorlake.results import counted
from mirrorlake.storage.paths import PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARK = ".mirrorlake-site.json"  # lists the files of the last build, which the next one replaces
_BY_SPHINX = {".buildinfo", "objects.inv"}  # not needed to read the site


@dataclass(frozen=True)
class Site:
    """A built site.

    Attributes:
        folder: its folder; `index.html` is the first page.
        pages: the number of its pages.
    """

    folder: Path
    pages: int


def build_site(folder: Path) -> Site:
    """Build the documentation's site into a folder; a site in the folder is replaced.

    Args:
        folder: a folder that is absent, empty, or contains a site.

    Returns:
        The site.

    Raises:
        UsageError: the folder contains other files, or the docs are not installed.
        CheckError: Sphinx warned, for example of a dead link or of a page in no table of contents.

    Example:
        >>> build_site(Path("site")).pages  # doctest: +SKIP
        98
    """
    if not (PROJECT / "docs" / "index.md").is_file():
        raise UsageError(
            "The docs are not installed.", hint="clone the project's repository and run this there."
        )
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise UsageError(f"{folder} contains other files.", hint="choose an empty folder.")
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    docs, warnings = PROJECT / "docs", io.StringIO()
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "site"
        with patch_docutils(docs), docutils_namespace():
            sphinx = Sphinx(
                srcdir=docs,
                confdir=docs,
                outdir=built,
                doctreedir=Path(scratch),
                buildername="html",
                status=None,
                warning=warnings,
                freshenv=True,
            )
            sphinx.build(force_all=True)
        if found := list(_lines(warnings.getvalue(), scratch)):
            raise CheckError(
                f"The site has {counted(len(found), 'warning')}: {'; '.join(found[:20])}"
            )
        files = _replace(folder, built)
    return Site(folder, sum(name.endswith(".html") for name in files))


def _replace(folder: Path, built: Path) -> list[str]:
    """Replace the files of the last build by those of a new one, and return their names."""
    mark = folder / _MARK
    old = json.loads(mark.read_text(encoding="utf-8")) if mark.is_file() else []
    new = sorted(p.relative_to(built).as_posix() for p in built.rglob("*") if p.is_file())
    new = [name for name in new if name not in _BY_SPHINX]
    for name in set(old) - set(new):
        if (folder / name).resolve().is_relative_to(folder.resolve()):
            (folder / name).unlink(missing_ok=True)
    for name in new:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built / name, folder / name)
    mark.write_text(json.dumps(new), encoding="utf-8")
    return new


def _lines(text: str, scratch: str) -> Iterator[str]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).replace(f"{scratch}/sources/", "")
    return (line for line in plain.splitlines() if line.strip())
