"""Builds the site with Sphinx; a warning of Sphinx, a dead link for example, is an error."""

from __future__ import annotations

import io
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake import __version__
from mirrorlake.errors import CheckError, UsageError
from mirrorlake.storage.paths import PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARK = ".mirrorlake-site.json"  # the files of the last build: only these are replaced
_BEFORE_NAPOLEON = 400
_BY_SPHINX = {".buildinfo", "objects.inv"}  # of no use to a reader
_LIGHT = {
    "color-brand-primary": "#0b6e99",
    "color-brand-content": "#0b6e99",
    "font-stack": "system-ui, sans-serif",
    "font-stack--monospace": "ui-monospace, monospace",
}
_DARK = {"color-brand-primary": "#6fc3e8", "color-brand-content": "#6fc3e8"}


@dataclass(frozen=True)
class Site:
    """A site that was built.

    Attributes:
        folder: where it is; `index.html` is its first page.
        pages: how many pages it has.
    """

    folder: Path
    pages: int


def build_site(folder: Path, program: Any) -> Site:
    """Builds the site into a folder; one that it built before is replaced.

    Args:
        folder: absent, empty, or with a site in it.
        program: the command line, as Click has it, whose help is a page.

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

    from mirrorlake_docs.sources import write_sources

    warnings = io.StringIO()
    with tempfile.TemporaryDirectory() as scratch:
        source, built = Path(scratch) / "source", Path(scratch) / "site"
        source.mkdir()
        write_sources(source, program)
        with patch_docutils(), docutils_namespace():
            sphinx = Sphinx(
                srcdir=source,
                confdir=None,
                outdir=built,
                doctreedir=Path(scratch) / "doctrees",
                buildername="html",
                confoverrides=_settings(),
                status=None,
                warning=warnings,
                freshenv=True,
            )
            sphinx.connect("autodoc-process-docstring", _keep_colons, priority=_BEFORE_NAPOLEON)
            sphinx.build(force_all=True)
        if found := list(_lines(warnings.getvalue(), scratch)):
            raise CheckError(f"The site has {len(found)} faults: {'; '.join(found[:20])}")
        files = _replace(folder, built)
    return Site(folder, sum(name.endswith(".html") for name in files))


def _settings() -> dict[str, Any]:
    """What Sphinx's `conf.py` would have: no network, no outside font, script or picture."""
    return {
        "project": "mirrorlake",
        "release": __version__,
        "extensions": ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb"],
        "html_theme": "furo",
        "html_title": f"mirrorlake {__version__}",
        "html_static_path": ["_static"],
        "html_css_files": ["site.css"],
        "html_theme_options": {"light_css_variables": _LIGHT, "dark_css_variables": _DARK},
        "html_copy_source": False,
        "html_show_sourcelink": False,
        "html_show_sphinx": False,
        "html_show_copyright": False,  # the licence is in LICENSE
        # The summaries of hits would be fetched, which a browser refuses from file://.
        "html_show_search_summary": False,
        "html_permalinks_icon": "#",
        "pygments_style": "default",
        "default_role": "literal",  # docstrings write names in single backticks
        "myst_enable_extensions": ["attrs_inline", "colon_fence"],
        "myst_heading_anchors": 4,
        "nb_execution_mode": "off",
        "nb_ipywidgets_js": {},
        "nb_mime_priority_overrides": [
            ("html", "application/vnd.jupyter.widget-view+json", None),
        ],
        "nb_merge_streams": True,
        "nb_code_prompt_show": "Show the answer",  # only solutions and checks are folded
        "nb_code_prompt_hide": "Hide the answer",
        "autodoc_typehints": "none",
        "autodoc_member_order": "bysource",
        "autodoc_preserve_defaults": True,
        "napoleon_numpy_docstring": False,
        "napoleon_use_rtype": False,
        "toc_object_entries_show_parents": "hide",
        "exclude_patterns": ["_static/*"],
    }


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


def _keep_colons(_app: object, what: str, _name: str, _of: object, _o: object, ls: Any) -> None:
    """Napoleon would take what stands before a property's first colon for its type."""
    if what == "property" and ls:
        ls[0] = ls[0].replace(": ", "; ", 1)


def _lines(text: str, scratch: str) -> Iterator[str]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).replace(f"{scratch}/source/", "")
    return (line for line in plain.splitlines() if line.strip())
