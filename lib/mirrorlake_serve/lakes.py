"""The lakes of a server, each with a name and a stable GUID, and their mirrors."""

from __future__ import annotations

import base64
import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock, RLock, Thread
from typing import Any

from mirrorlake.errors import InvalidNameError, UsageError
from mirrorlake.lake import Lake
from mirrorlake.names import STATE, check_part, fingerprint
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept
from mirrorlake.storage.paths import cache
from mirrorlake_serve.protocol import RequestError, bad_request
from mirrorlake_serve.zone import LandingZone

FORMAT = 1
DEFINITION = {
    "properties": {
        "source": {"type": "GenericMirror", "typeProperties": {}},
        "target": {
            "type": "MountedRelationalDatabase",
            "typeProperties": {"defaultSchema": "dbo", "format": "Delta", "retentionInDays": 7},
        },
    }
}
_KINDS = (".MountedRelationalDatabase", ".MirroredDatabase")
_NOTE = f"{STATE}/serve.json"
_log = logging.getLogger("mirrorlake.serve.mirrors")
_RETRY = 5.0  # seconds after a cycle that failed as a whole


@dataclass(frozen=True)
class Item:
    """One lake as clients see it: a mirrored database.

    Attributes:
        id: its GUID.
        made: whether this server made its folder.
        definition: its `mirroring.json`; None until there is one.
    """

    id: str
    name: str
    zone: LandingZone = field(repr=False)
    description: str = ""
    made: bool = False
    definition: dict[str, Any] | None = None

    @property
    def storage(self) -> Storage:
        """The lake's files."""
        return self.zone.storage

    def is_called(self, text: str) -> bool:
        """Whether a part of an address means this lake."""
        lower = text.lower()
        for kind in _KINDS:
            lower = lower.removesuffix(kind.lower())
        return lower in (self.id, self.name.lower())


class Workspace:
    """All lakes of a server: one by its root, those in a folder, or both.

    Args:
        root: a lake's path or URI.
        folder: a folder whose folders are lakes; new ones are made in it.
        read_only: nothing is written, not even what belongs to the server.
        widen: whether files may have wider types than their tables' columns.

    Attributes:
        leaving: is told of a lake before it is unregistered.
    """

    def __init__(
        self,
        root: str | None = None,
        folder: str | None = None,
        *,
        read_only: bool = False,
        widen: bool = False,
    ) -> None:
        self.read_only = read_only
        self._widen = widen
        self._folder = None if folder is None else Storage(folder)
        place = self._folder or Storage(root or ".")
        self.id = _guid("workspace", place.root)
        self.name = place.root.rpartition("/")[2] if self._folder else "mirrorlake"
        self._items: dict[str, Item] = {}
        self._lock = RLock()
        self._main = ""
        self.leaving: Callable[[Item], None] = lambda item: None
        if root is not None:
            self._add(Storage(root), asked=True)
            self._main = next(iter(self._items))
        for name in self._folder.list("").folders if self._folder else ():
            if not name.startswith(("_", ".")):
                self._add(self._inside(name))

    def is_called(self, text: str) -> bool:
        """Whether a part of an address means this workspace."""
        return text.lower() in (self.id, self.name.lower())

    @property
    def items(self) -> list[Item]:
        """The lakes, ordered by name."""
        return sorted(self._items.values(), key=lambda item: item.name)

    @property
    def main(self) -> Item | None:
        """The lake that the server was started with, or the only one."""
        found = self._items.get(self._main)
        return next(iter(self._items.values())) if not found and len(self._items) == 1 else found

    def find(self, text: str) -> Item | None:
        """The lake that a part of an address means."""
        return next((item for item in self._items.values() if item.is_called(text)), None)

    def _inside(self, name: str) -> Storage:
        if self._folder is None:
            raise RequestError(
                403, "OperationNotAllowed", "This server has one lake; start it with --workspace."
            )
        return Storage(self._folder.path(name))

    def _add(self, storage: Storage, *, asked: bool = False) -> None:
        note = read_kept(storage, _NOTE, FORMAT) or {}
        if note.get("unregistered") and not asked:
            return
        item = Item(
            note.get("id") or _guid("item", storage.root),
            note.get("name") or storage.root.rpartition("/")[2] or "lake",
            LandingZone(storage, _state_folder(storage), widen=self._widen),
            note.get("description", ""),
            note.get("made", False),
            note.get("definition", DEFINITION),
        )
        if not self.read_only:
            item.zone.uploads.load()
        self._items.setdefault(item.id, item)

    def create(self, name: str, description: str, definition: dict[str, Any] | None) -> Item:
        """Makes a lake in the workspace's folder, or registers again one that was deleted.

        Raises:
            RequestError: the name is taken, or can't be a folder's; or there is no such folder.
        """
        try:
            check_part(name)
        except InvalidNameError as error:
            raise bad_request("InvalidItemName", str(error)) from None
        with self._lock:
            storage = self._inside(name)
            if self.find(name) is not None:
                raise RequestError(
                    409, "ItemDisplayNameAlreadyInUse", f"There is a mirrored database {name!r}."
                )
            listed = storage.list("")
            made = not (listed.folders or listed.files)
            made = made or bool((read_kept(storage, _NOTE, FORMAT) or {}).get("made"))
            zone = LandingZone(storage, _state_folder(storage), widen=self._widen)
            item = Item(str(uuid.uuid4()), name, zone, description, made, definition)
            zone.files.make_folder("Files/LandingZone")
            return self.change(item)

    def change(self, item: Item, **changes: Any) -> Item:
        """Keeps an item with some of its fields changed."""
        changed = replace(item, **changes)
        note = {
            "format": FORMAT,
            "id": changed.id,
            "name": changed.name,
            "description": changed.description,
            "made": changed.made,
            "definition": changed.definition,
        }
        with self._lock:
            other = self.find(changed.name)
            if other is not None and other.id != item.id:
                raise RequestError(
                    409, "ItemDisplayNameAlreadyInUse", f"{changed.name!r} is taken."
                )
            changed.storage.write_json(_NOTE, note)
            self._items[item.id] = changed
        return changed

    def delete(self, item: Item, *, hard: bool) -> None:
        """Unregisters a lake; its files stay unless `hard`, and this server made them."""
        self.leaving(item)
        with self._lock:
            self._items.pop(item.id, None)
            if hard and item.made:
                item.storage.delete_folder("")
                return
            kept = {"format": FORMAT, "unregistered": True, "made": item.made}
            item.storage.write_json(_NOTE, kept)


def parse_definition(parts: Any) -> dict[str, Any]:
    """The `mirroring.json` among a definition's parts.

    Raises:
        RequestError: there is none, or it makes no sense.
    """
    try:
        payload = next(p["payload"] for p in parts if p["path"] == "mirroring.json")
        document = json.loads(base64.b64decode(payload, validate=True))
        source = document["properties"]["source"]["type"]
        target = document["properties"]["target"].get("typeProperties") or {}
        days = target.get("retentionInDays", 7)
    except StopIteration:
        raise bad_request("InvalidDefinitionParts", "There is no part mirroring.json.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise bad_request("InvalidDefinitionFormat", "mirroring.json makes no sense.") from None
    if source != "GenericMirror":
        text = f"The source's type is {source!r}; only GenericMirror is known here."
        raise bad_request("UnsupportedSourceType", text)
    if not isinstance(days, int) or isinstance(days, bool) or not 1 <= days <= 30:
        text = f"retentionInDays is {days!r}, not a number from 1 to 30."
        raise bad_request("InvalidDefinitionFormat", text)
    found: dict[str, Any] = document
    return found


def format_definition(document: dict[str, Any]) -> dict[str, Any]:
    """A `mirroring.json` as a definition's only part."""
    payload = base64.b64encode(json.dumps(document).encode()).decode()
    part = {"path": "mirroring.json", "payload": payload, "payloadType": "InlineBase64"}
    return {"definition": {"parts": [part]}}


def state_home() -> Path:
    """Where the server keeps what belongs to no lake: token, authority."""
    return cache() / "serve"


def _state_folder(storage: Storage) -> Path:
    """Where uploads are kept: on the lake's own disk, so that publishing is one step."""
    if storage.local is not None:
        return storage.local / STATE / "serve"
    return state_home() / fingerprint(storage.root)


def _guid(kind: str, root: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"mirrorlake:{kind}:{root}"))


class _Running:
    """A mirror's thread."""

    def __init__(self, storage: Storage, interval: float, *, widen: bool) -> None:
        self.stop = Event()
        self.began = False
        self.problem = ""
        self.thread = Thread(target=self._run, args=(storage, interval, widen), daemon=True)
        self.thread.start()

    def _run(self, storage: Storage, interval: float, widen: bool) -> None:
        while not self.stop.is_set():
            try:
                Lake(storage.root).watch(
                    self.stop, interval=interval, widen=widen, on_report=self._on_report
                )
            except Exception as error:
                self.problem = str(error)
                _log.exception("The mirror of %s failed; it tries again.", storage.root)
                self.stop.wait(_RETRY)

    def _on_report(self, _report: object) -> None:
        self.began, self.problem = True, ""


class Mirrors:
    """The mirrors of a server, one thread per lake, all on one Spark session.

    Each method may block: the server calls them in its thread pool.

    Args:
        interval: seconds between busy cycles.
        allowed: whether there may be any; without, Spark is never started.
        widen: whether they widen columns, see `MirrorOptions`.
    """

    def __init__(self, interval: float = 5, *, allowed: bool = True, widen: bool = False) -> None:
        self._interval = interval
        self._widen = widen
        self._allowed = allowed
        self._running: dict[str, _Running] = {}
        self._lock = Lock()

    def start(self, storage: Storage) -> None:
        """Mirror this lake from now on; do nothing if it is mirrored already.

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
                self._running[storage.root] = _Running(storage, self._interval, widen=self._widen)

    def stop(self, storage: Storage) -> None:
        """Stop the mirror of this lake after its running commit, and wait until it has ended."""
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
        """Return the state of the lake's mirror in Fabric's words, and its problem or ""."""
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
        """Return one entry per table, in the form of `getTablesMirroringStatus`."""
        found = []
        for table in Lake(storage.root).status().tables:
            entry: dict[str, Any] = {
                "sourceObjectType": "Table",
                "sourceSchemaName": table.schema or "",
                "sourceTableName": table.name,
                "status": table.state,
                "metrics": {
                    "processedBytes": table.applied_bytes,
                    "processedRows": table.rows,
                    "lastSyncDateTime": table.synced,
                    "lastSyncLatencyInSeconds": table.latency,
                },
            }
            if table.error:
                entry["error"] = {"errorCode": "TableFailed", **table.error}
            found.append(entry)
        return found
