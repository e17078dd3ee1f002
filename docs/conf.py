"""Sphinx's settings for the site: no network, and no outside font, script or picture.

`./mirrorlake docs` builds it, as does `sphinx-build docs site`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mirrorlake import __version__ as release

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
_LIGHT = {
    "color-brand-primary": "#0b6e99",
    "color-brand-content": "#0b6e99",
    "font-stack": "system-ui, sans-serif",
    "font-stack--monospace": "ui-monospace, monospace",
}
_DARK = {"color-brand-primary": "#6fc3e8", "color-brand-content": "#6fc3e8"}

project = "mirrorlake"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb", "mirrorlake_docs"]
html_theme = "furo"
html_title = f"mirrorlake {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_theme_options = {"light_css_variables": _LIGHT, "dark_css_variables": _DARK}
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False  # the licence is in LICENSE
# The summaries of hits would be fetched, which a browser refuses from file://; see search.py.
html_show_search_summary = False
html_permalinks_icon = "#"
pygments_style = "default"
default_role = "literal"  # docstrings write names in single backticks
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_ipywidgets_js = {}
nb_mime_priority_overrides = [
    ("html", "application/vnd.jupyter.widget-view+json", None),
]
nb_merge_streams = True
nb_code_prompt_show = "Show the answer"  # only solutions and checks are folded
nb_code_prompt_hide = "Hide the answer"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"
exclude_patterns = ["_static/*"]
