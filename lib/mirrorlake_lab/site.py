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
from mirrorlake.storage.paths import PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARK = ".mirrorlake-site.json"  # the files of the last build: only these are replaced
_BY_SPHINX = {".buildinfo", "objects.inv"}  # of no use to a reader


@dataclass(frozen=True)
class Site:
    """A site that was built.

    Attributes:
        folder: where it is; `index.html` is its first page.
        pages: how many pages it has.
    """

    folder: Path
    pages: int


def build_site(folder: Path) -> Site:
    """Builds the site into a folder; one that it built before is replaced.

    Args:
        folder: absent, empty, or with a site in it.

    Raises:
        UsageError: the folder holds something else, or there is no source of the docs here.
        CheckError: Sphinx found a dead link, a page in no table of contents, or the like.
    """
    if not (PROJECT / "docs" / "index.md").is_file():
        raise UsageError("There are no docs here.", hint="they lie in the project's source.")
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise UsageError(f"{folder} holds something else.", hint="name an empty folder.")
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
            raise CheckError(f"The site has {len(found)} faults: {'; '.join(found[:20])}")
        files = _replace(folder, built)
    return Site(folder, sum(name.endswith(".html") for name in files))


def _replace(folder: Path, built: Path) -> list[str]:
    """Puts a built site in the place of the last one; what is not of a site stays."""
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
