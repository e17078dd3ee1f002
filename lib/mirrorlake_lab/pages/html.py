"""HTML of pages and widgets, and how a page reaches a browser: as a file or by a local server.

No other module writes HTML from values: `text` escapes every value here. Widgets use Lab's colours,
so they fit its light and dark theme; a page outside Lab follows the browser's preference.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from html import escape
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

from mirrorlake.errors import SetupError, UsageError
from mirrorlake.results import TextTable, decimal_text, float_text
from mirrorlake_runs.records import write_whole

STYLE = """
.ml {--ml-fg: var(--jp-content-font-color1, light-dark(#1b1f24, #e8eaed));
 --ml-soft: var(--jp-content-font-color2, light-dark(#57606a, #a8b0b8));
 --ml-back: var(--jp-layout-color1, light-dark(#ffffff, #16191d));
 --ml-line: var(--jp-border-color2, light-dark(#d8dee4, #3a4149));
 --ml-band: var(--jp-layout-color2, light-dark(#f3f5f7, #20252b));
 --ml-good: var(--jp-success-color1, light-dark(#1a7f37, #4ac26b));
 --ml-warn: var(--jp-warn-color1, light-dark(#b35900, #f0a04b));
 --ml-bad: var(--jp-error-color1, light-dark(#c4261d, #ff7b72));
 --ml-blue: light-dark(#0072b2, #56b4e9);
 color: var(--ml-fg); font: 13px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif;
 max-width: 100%; overflow-wrap: break-word}
.ml h1 {font-size: 20px; margin: 0 0 2px} .ml h2 {font-size: 15px; margin: 18px 0 6px}
.ml p {margin: 4px 0} .ml .soft {color: var(--ml-soft)} .ml .scroll {overflow-x: auto}
.ml table {border-collapse: collapse; margin: 4px 0; font-size: 13px; color: inherit}
.ml th, .ml td {padding: 3px 8px; border-bottom: 1px solid var(--ml-line); vertical-align: top;
 text-align: left; white-space: normal; max-width: 34em}
.ml .path {overflow-wrap: anywhere} .ml .wide {display: inline-block; min-width: 11em}
.ml thead th {background: var(--ml-band); color: inherit}
.ml caption {text-align: left; font-weight: 600; white-space: nowrap}
.ml .n {text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap}
.ml thead .n {white-space: normal}
.ml td.t, .ml td .t {white-space: nowrap}
.jupyter-widgets.jupyter-widget-tab.ml-tabs > .lm-TabBar .lm-TabBar-tab {
 flex: 0 0 auto; padding: 0 8px; min-width: 0}
.ml .null {color: var(--ml-soft); font-style: italic}
.ml .dot::before {content: "●"; margin-right: 5px} .ml .good::before {color: var(--ml-good)}
.ml .warn::before {color: var(--ml-warn)} .ml .bad::before {color: var(--ml-bad)}
.ml .idle::before {color: var(--ml-soft)}
.ml .changed {outline: 2px solid var(--ml-warn); outline-offset: -2px; font-weight: 600}
.ml .gauge {display: inline-block; width: 140px; height: 9px; background: var(--ml-band);
 border: 1px solid var(--ml-line); vertical-align: middle}
.ml .gauge i {display: block; height: 100%; background: var(--ml-good)}
.ml .gauge .over {background: var(--ml-bad)}
.ml code {font-size: 12px; background: var(--ml-band); padding: 1px 4px; color: inherit}
.ml svg {vertical-align: middle}
"""

_ALONE = (
    ":root {color-scheme: light dark} body {margin: 20px; background: light-dark(#fff, #16191d)}"
)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def text(value: Any) -> str:
    """Return a value as escaped HTML text, with separators in numbers and no control characters.

    Example:
        >>> text("<b>"), text(12345), text(None)
        ('&lt;b&gt;', '12,345', '<span class="null">NULL</span>')
    """
    if value is None:
        return '<span class="null">NULL</span>'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return float_text(value, ",")
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, datetime):
        value = f"{value:%Y-%m-%d %H:%M:%S}"
    shown = escape(plain_text(str(value)))
    if _TIMESTAMP.fullmatch(shown):  # neither the date nor the time is wrapped
        return '<span class="t">{}</span> <span class="t">{}</span>'.format(*shown.split())
    return shown


def plain_text(value: str) -> str:
    r"""Return a text with unprintable characters, such as a change of direction, as their codes.

    Example:
        >>> plain_text("a" + chr(0x202E) + "b")
        'a\\u202eb'
    """
    return "".join(
        char if char.isprintable() or char in "\n\t" else f"\\u{ord(char):04x}" for char in value
    )


class Html(str):
    """Text that is HTML already, which `table` and `facts` do not escape."""

    __slots__ = ()


def cell(value: Any) -> str:
    """Return a value as HTML; a value that is HTML already is not escaped again."""
    return value if isinstance(value, Html) else text(value)


def table(
    shown: TextTable,
    *,
    caption: str = "",
    changed: Iterable[tuple[int, int]] = (),
    data: bool = False,
) -> Html:
    """Return rows as a table with right-aligned numbers, which scrolls if it is too wide.

    Args:
        shown: the rows.
        caption: the table's caption, which screen readers read as well.
        changed: the row and column of cells to highlight.
        data: whether the rows are user data. Their integers have no separators, because 2013 can be
            a year, and their timestamps are complete.
    """
    marked = set(changed)
    right = [_is_numeric(shown, index) for index in range(len(shown.columns))]
    head = "".join(
        f'<th scope="col"{_classes("n" if number else "")}>{text(name)}</th>'
        for name, number in zip(shown.columns, right, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_classes(_kind(value, right[x]), 'changed' if (y, x) in marked else '')}>"
            f"{_as_data(value) if data else cell(value)}</td>"
            for x, value in enumerate(row)
        )
        + "</tr>"
        for y, row in enumerate(shown.rows)
    )
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    return Html(
        f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def facts(found: Mapping[str, Any]) -> Html:
    """Return names and values as a table with one row per name."""
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th><td>{cell(value)}</td></tr>'
        for name, value in found.items()
    )
    return Html(f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>')


def note(message: str) -> Html:
    """Return a sentence in a muted colour."""
    return Html(f'<p class="soft">{text(message)}</p>')


def heading(title: str) -> Html:
    """Return the heading of a section."""
    return Html(f"<h2>{text(title)}</h2>")


def join(*parts: str) -> Html:
    """Return parts that are HTML already, one below the other."""
    return Html("".join(parts))


def wide(message: str, *more: str) -> Html:
    """Return a sentence for a wide table cell, with further lines below it."""
    lines = [text(message), *(f'<span class="soft">{text(line)}</span>' for line in more)]
    shown = "<br>".join(filter(None, lines))
    return Html(f'<span class="wide">{shown}</span>' if shown else "")


def breaking(name: str) -> Html:
    """Return a path that may break anywhere, so that a narrow window shows the other columns."""
    return Html(f'<span class="wide path">{text(name)}</span>')


def unbroken(words: str) -> Html:
    """Return a text of which lines break only after a comma."""
    parts = words.split(", ")
    return Html(", ".join(f'<span class="t">{text(part)}</span>' for part in parts))


def dot(kind: str, word: str) -> Html:
    """Return a state as a coloured dot (`good`, `warn`, `bad` or `idle`) and a word."""
    return Html(f'<span class="dot t {escape(kind)}">{text(word)}</span>')


def gauge(share: float, label: str) -> Html:
    """Return a bar for the used share of a limit; above 1 it is full and has another colour."""
    over = ' class="over"' if share > 1 else ""
    width = max(0.0, min(100.0, 100 * share))
    return Html(
        f'<span class="gauge" role="img" aria-label="{text(label)}">'
        f'<i{over} style="width:{width:.1f}%"></i></span>'
    )


def sparkline(values: Sequence[float], label: str) -> Html:
    """Return a small line chart, the newest value to the right; empty for fewer than two values."""
    if len(values) < 2:
        return Html("")
    width, height = 76, 22
    top = max(values) or 1.0
    step = (width - 4) / (len(values) - 1)
    points = " ".join(
        f"{2 + number * step:.1f},{height - 2 - (height - 4) * value / top:.1f}"
        for number, value in enumerate(values)
    )
    return Html(
        f'<svg width="{width}" height="{height}" role="img" aria-label="{text(label)}">'
        f'<title>{text(label)}</title><polyline points="{points}" fill="none"'
        ' stroke="var(--ml-blue)" stroke-width="1.6"/></svg>'
    )


def view(inner: str) -> Html:
    """Return HTML for a notebook's output, with the style that it needs."""
    return Html(f'<style>{STYLE}</style><div class="ml">{inner}</div>')


def page(title: str, inner: str, *, every: float | None = None) -> str:
    """Return a complete document without scripts, which loads nothing from elsewhere.

    Args:
        title: the title of the window.
        inner: the content, as HTML.
        every: seconds after which the browser reloads the page; by default it does not.
    """
    again = "" if every is None else f'<meta http-equiv="refresh" content="{max(1, round(every))}">'
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">{again}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{_ALONE}{STYLE}</style></head>"
        f'<body><main class="ml">{inner}</main></body></html>\n'
    )


def _as_data(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, datetime):  # with its fraction and its zone
        return text(str(value))
    whole = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if whole else cell(value)


def _kind(value: Any, right: bool) -> str:
    """Return the CSS class of a cell: right-aligned for numbers, not wrapped for sizes."""
    short = isinstance(value, str) and 0 < len(value) <= 12 and value[0].isdigit()
    return "n" if right else "t" if short else ""


def _classes(*names: str) -> str:
    given = " ".join(filter(None, names))
    return f' class="{given}"' if given else ""


def _is_numeric(shown: TextTable, index: int) -> bool:
    values = [row[index] for row in shown.rows if row[index] not in (None, "")]
    return bool(values) and all(
        isinstance(v, (int, float, Decimal)) and not isinstance(v, bool) for v in values
    )


_log = logging.getLogger("mirrorlake.lab.pages")
_HERE = ("localhost", "127.0.0.1", "[::1]")


def save_page(path: str | Path, document: str) -> None:
    """Write a page atomically, so that no browser reads an incomplete file.

    Raises:
        UsageError: the file can't be written.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise UsageError(
            f"{target} can't be written: the folder {target.parent} does not exist.",
            hint="create it, or choose another path.",
        )
    try:
        write_whole(target, document)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}.") from error


class FolderHandler(SimpleHTTPRequestHandler):
    """A handler for the files of a folder, without log lines, which would hide the address."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class LocalServer:
    """An HTTP server that only this machine can reach.

    Args:
        handler: handles one request.
        port: the port; 0 chooses a free one.

    Raises:
        SetupError: the port is in use.
    """

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler], port: int = 0) -> None:
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        except OSError as error:
            raise SetupError(f"Port {port} is in use.", hint="choose another port.") from error
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def run(self, stop: Event) -> None:
        """Serve requests until the event is set."""
        thread = Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        stop.wait()
        self._server.shutdown()
        self._server.server_close()
        thread.join()


class PageServer(LocalServer):
    """A server of one page, under `/`.

    Requests whose `Host` is not this machine are refused, so that no other site's page can read it.

    Args:
        make: returns the document.
        port: the port; 0 chooses a free one.

    Raises:
        SetupError: the port is in use.
    """

    def __init__(self, make: Callable[[], str], port: int = 0) -> None:
        class Handler(BaseHTTPRequestHandler):
            server_version = "mirrorlake"
            sys_version = ""

            def do_GET(self) -> None:
                host = (self.headers.get("Host") or "").rpartition(":")[0]
                if self.path != "/" or host not in _HERE:
                    self.send_error(404 if host in _HERE else 403)
                    return
                try:
                    body = make().encode()
                except Exception:
                    _log.exception("The page could not be rendered.")
                    self.send_error(500, "The lake could not be read")
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Security-Policy", POLICY)
                self.send_header("X-Content-Type-Options", "nosniff")
                self.send_header("Cache-Control", "no-store")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                _log.debug(format, *args)

        super().__init__(Handler, port)
