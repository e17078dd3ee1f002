"""`POST /debezium/NAME`: events into a lake's journal, and from there, by its own measure, on."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from threading import Event, Lock, Thread

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mirrorlake.errors import MirrorlakeError
from mirrorlake.source_status import SourceReport
from mirrorlake_serve.call import read_document
from mirrorlake_serve.errors import RequestError, bad_request
from mirrorlake_serve.lakes import Item, Workspace
from mirrorlake_serve.paths import decode
from mirrorlake_sources import Journal, journals_of, run_source

_log = logging.getLogger("mirrorlake.serve.debezium")
_PREFIX = "/debezium/"
_LARGEST = 64 << 20  # bytes of one POST
_RETRY = 5.0  # seconds after a publisher that failed as a whole
_AGAIN = 30.0  # … after which a stopped table is tried again


def is_debezium(path: str) -> bool:
    """Whether a path belongs to this door."""
    return path.startswith(_PREFIX)


class DebeziumDoor:
    """The journals of a server's lakes; each is published by a thread of its own.

    Args:
        workspace: the lakes.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._open: dict[tuple[str, str], _Published] = {}
        self._lock = Lock()
        workspace.leaving = self.forget

    def resume(self) -> None:
        """Goes on with the journals that earlier servers have left."""
        if self._workspace.read_only:
            return
        for item in self._workspace.items:
            if item.storage.local is not None:
                for name in journals_of(item.storage):
                    self._journal(item, name)

    async def answer(self, request: Request) -> Response:
        """Answers one POST, once its events are on the disk.

        Raises:
            RequestError: it is refused; nothing of it is taken.
        """
        parts = decode(request.scope["raw_path"].decode("ascii", "replace"))
        if len(parts) != 2:
            raise RequestError(404, "EndpointNotFound", "POST to /debezium/NAME.")
        if request.method != "POST":
            raise RequestError(405, "UnsupportedHttpVerb", "Use POST here.")
        item = self._item(request.query_params.get("lake", ""))
        body = await read_document(request, _LARGEST)
        return JSONResponse({"events": await run_in_threadpool(self._take, item, parts[1], body)})

    def close(self) -> None:
        """Ends the publishing, with whole batches published."""
        with self._lock:
            found, self._open = list(self._open.values()), {}
        _close(found)

    def forget(self, item: Item) -> None:
        """Ends the publishing of one lake."""
        with self._lock:
            found = {key: one for key, one in self._open.items() if key[0] == item.id}
            self._open = {key: one for key, one in self._open.items() if key not in found}
        _close(found.values())

    def _take(self, item: Item, name: str, body: bytes) -> int:
        try:
            return self._journal(item, name).append(body)
        except MirrorlakeError as error:
            raise bad_request("InvalidInput", str(error)) from error

    def _journal(self, item: Item, name: str) -> Journal:
        with self._lock:
            key = (item.id, name)
            if key not in self._open:
                self._open[key] = _Published(Journal(item.storage, name), item)
            return self._open[key].journal

    def _item(self, text: str) -> Item:
        item = self._workspace.find(text) if text else self._workspace.main
        if item is None:
            problem = f"There is no lake {text!r}." if text else "The server has several lakes."
            raise bad_request("InvalidInput", f"{problem} Hint: say which one: ?lake=NAME.")
        return item


class _Published:
    """A journal, and the thread that publishes it."""

    def __init__(self, journal: Journal, item: Item) -> None:
        self.journal = journal
        self.item = item
        self._ended = False
        self._failed = 0.0
        self._round = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Asks for the end; whole batches are published before it."""
        self._ended = True
        self._round.set()

    def wait(self) -> None:
        """Returns once nothing is published any more."""
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            self._failed = 0.0
            try:
                run_source(
                    self.item.storage,
                    self.journal.source(),
                    once=False,
                    stop=self._round,
                    on_report=self._look,
                )
            except Exception:
                _log.exception("Publishing %s failed; it is tried again.", self.journal.name)
                self._round.wait(_RETRY)
            self._round.clear()

    def _look(self, report: SourceReport) -> None:
        """A stopped table is tried again after a while: somebody may have mended it."""
        if not report.failed:
            return
        self._failed = self._failed or time.monotonic()
        if time.monotonic() - self._failed > _AGAIN:
            self._round.set()


def _close(found: Collection[_Published]) -> None:
    for one in found:
        one.end()
    for one in found:
        one.wait()
