"""Build the site once for all test processes, with the command and without a network."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from helpers.project import PROJECT

# Every connection to another machine fails while the site is built.
_OFFLINE = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "urllib.Request"):
        raise OSError(f"no network here: {event} {arguments}")

sys.addaudithook(refuse)
from mirrorlake.cli.main import main
main()
"""


def built_site(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site."""
    base = factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "index.html").is_file():
            paths = os.pathsep.join([str(PROJECT / "lib"), os.environ.get("PYTHONPATH", "")])
            done = subprocess.run(
                [sys.executable, "-c", _OFFLINE, "docs", "--out", str(folder)],
                env=os.environ | {"PYTHONPATH": paths},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return folder


@dataclass
class Page(HTMLParser):
    """A page's links, anchors and loaded files."""

    path: Path
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)
    without_alt: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def __hash__(self) -> int:
        return hash(self.path)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found: dict[str, Any] = dict(attrs)
        self.ids |= {str(found[name]) for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag == "link" and set(str(found.get("rel")).split()) & {"stylesheet", "icon", "preload"}:
            self.loads.append(found["href"])
        if tag in ("script", "img", "iframe", "source", "object") and found.get("src"):
            self.loads.append(found["src"])
        if tag == "img" and str(found.get("alt", ".png")).endswith(".png"):  # words, no file's name
            self.without_alt.append(str(found.get("src"))[:80])

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        """The visible text, with single spaces."""
        return " ".join(" ".join(self.texts).split())


def target_of(page: Page, link: str) -> tuple[Path, str] | None:
    """Return the file and the anchor of a link; None for a link to another site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = page.path.parent / unquote(parts.path) if parts.path else page.path
    return path.resolve(), unquote(parts.fragment)
