"""How a page gets to a browser: as a file, or by a small server for this machine alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

from mirrorlake.errors import SetupError, UsageError
from mirrorlake_lab.pages.html import POLICY
from mirrorlake_runs.records import write_whole

_log = logging.getLogger("mirrorlake.lab.pages.serving")
_HERE = ("localhost", "127.0.0.1", "[::1]")


def save_page(path: str | Path, document: str) -> None:
    """Puts a page there in one step, so that no browser reads half of it.

    Raises:
        UsageError: it can't be written.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise UsageError(f"{target} can't be written: there is no folder {target.parent}.")
    try:
        write_whole(target, document)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}.") from error


class FolderHandler(SimpleHTTPRequestHandler):
    """Files of a folder; a log line for each request would hide the address."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class LocalServer:
    """Answers requests on this machine alone.

    Args:
        handler: answers one request.
        port: 0 takes a free one.

    Raises:
        SetupError: the port is taken.
    """

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler], port: int = 0) -> None:
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        except OSError as error:
            raise SetupError(f"Port {port} can't be used.", hint="name another --port.") from error
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def run(self, stop: Event) -> None:
        """Serves until the event is set."""
        thread = Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        stop.wait()
        self._server.shutdown()
        self._server.server_close()
        thread.join()


class PageServer(LocalServer):
    """Serves what a function returns, under `/`.

    Only requests that name this machine are answered, so that no other site's page can read it.

    Args:
        make: returns the document.
        port: 0 takes a free one.

    Raises:
        SetupError: the port is taken.
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
                    _log.exception("The page could not be made.")
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
