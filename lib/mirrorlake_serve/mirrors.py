"""The mirrors that run beside a server, and what they say of themselves in Fabric's words."""

from __future__ import annotations

import logging
from threading import Event, Lock, Thread
from typing import Any

from mirrorlake.errors import UsageError
from mirrorlake.lake import Lake
from mirrorlake.mirror.options import MirrorOptions
from mirrorlake.mirror.state import TableState, load_states
from mirrorlake.storage.files import Storage

_log = logging.getLogger("mirrorlake.serve.mirrors")
_RETRY = 5.0  # seconds after a cycle that failed as a whole


class _Running:
    """A mirror's thread."""

    def __init__(self, storage: Storage, interval: float, options: MirrorOptions) -> None:
        self.stop = Event()
        self.began = False
        self.problem = ""
        self.thread = Thread(target=self._run, args=(storage, interval, options), daemon=True)
        self.thread.start()

    def _run(self, storage: Storage, interval: float, options: MirrorOptions) -> None:
        while not self.stop.is_set():
            try:
                Lake(storage.root).watch(
                    self.stop, interval=interval, options=options, on_report=self._on_report
                )
            except Exception as error:
                self.problem = str(error)
                _log.exception("The mirror of %s failed; it tries again.", storage.root)
                self.stop.wait(_RETRY)

    def _on_report(self, _report: object) -> None:
        self.began, self.problem = True, ""


class Mirrors:
    """The mirrors of a server, a thread a lake, all on one Spark session.

    Args:
        interval: seconds between busy cycles.
        allowed: whether there may be any; without, Spark is never started.
        widen: whether they widen columns, see `MirrorOptions`.
    """

    def __init__(self, interval: float = 5, *, allowed: bool = True, widen: bool = False) -> None:
        self._interval = interval
        self._options = MirrorOptions(widen=widen)
        self._allowed = allowed
        self._running: dict[str, _Running] = {}
        self._lock = Lock()

    def start(self, storage: Storage) -> None:
        """Mirrors this lake from now on.

        Raises:
            UsageError: the server was started without mirrors.
        """
        if not self._allowed:
            raise UsageError(
                "This server has no mirror.", hint="start it with --mirror, or mirror beside it."
            )
        with self._lock:
            found = self._running.get(storage.root)
            if found is None or found.stop.is_set():
                self._running[storage.root] = _Running(storage, self._interval, self._options)

    def stop(self, storage: Storage) -> None:
        """Ends the mirror of this lake after the commit at hand."""
        with self._lock:
            found = self._running.pop(storage.root, None)
        if found is not None:
            found.stop.set()
            found.thread.join()

    def close(self) -> None:
        """Ends every mirror."""
        with self._lock:
            found, self._running = list(self._running.values()), {}
        for one in found:
            one.stop.set()
        for one in found:
            one.thread.join()

    def status(self, storage: Storage) -> tuple[str, str]:
        """The state of the lake's mirror in Fabric's words, and what is wrong."""
        found = self._running.get(storage.root)
        if found is not None:
            if found.stop.is_set():
                return "Stopping", found.problem
            return ("Running" if found.began else "Starting"), found.problem
        if self._allowed:
            return "Stopped", ""
        # Another process may mirror the lake; it says so in the monitoring files.
        try:
            told = storage.read_json("Files/Monitoring/replicator.json") or {}
            return str(told.get("status", "Initialized")), str(told.get("errorMessage", ""))
        except (ValueError, AttributeError):
            return "Initialized", ""

    def tables(self, storage: Storage) -> list[dict[str, Any]]:
        """One entry per table, as `getTablesMirroringStatus` has them."""
        states = load_states(storage) or {}
        report = Lake(storage.root).status()
        found = []
        for line in report.tables:
            kept = next(
                (s for s in states.values() if (s.schema, s.name) == (line.schema, line.name)), None
            )
            found.append(_entry(kept or TableState(line.schema, line.name), line.state, line.error))
        return found


def _entry(state: TableState, told: str, error: dict[str, Any] | None) -> dict[str, Any]:
    metrics = {
        "processedBytes": state.bytes,
        "processedRows": state.rows,
        "lastSyncDateTime": state.synced,
        "lastSyncLatencyInSeconds": state.latency,
    }
    found: dict[str, Any] = {
        "sourceObjectType": "Table",
        "sourceSchemaName": state.schema or "",
        "sourceTableName": state.name,
        "status": told,
        "metrics": metrics,
    }
    if error:
        found["error"] = {"errorCode": "TableFailed", **error}
    return found
