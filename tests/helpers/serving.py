"""A server of the storage protocol in a thread, and its clients."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import requests

from helpers.places import ZONE
from mirrorlake.storage.files import Storage
from mirrorlake_serve import DEFINITION, Item, Mirrors, Ready, Settings, Workspace, run_server

DEADLINE = 60
FOREVER = 4102444800


@dataclass
class Token:
    """A credential as identity libraries return it, for a given token."""

    token: str

    def get_token(self, *_scopes: str, **_options: Any) -> Any:
        from azure.core.credentials import AccessToken

        return AccessToken(self.token, FOREVER)


def data_lake_of(ready: Ready) -> Any:
    """Return Microsoft's client for a server's DFS address."""
    from azure.storage.filedatalake import DataLakeServiceClient

    token = Token(ready.token)
    return DataLakeServiceClient(ready.dfs, credential=token, connection_verify=ready.ca)


@dataclass
class Lake:
    """One served lake, and a session that may write to it."""

    ready: Ready
    item: Item
    session: requests.Session = field(repr=False)
    base: str = ""

    @property
    def storage(self) -> Storage:
        return self.item.storage

    @property
    def root(self) -> Path:
        assert self.storage.local is not None
        return self.storage.local

    @property
    def name(self) -> str:
        """The lake in a URL."""
        return f"{self.ready.workspace}/{self.item.id}"

    def url(self, path: str, base: str = "") -> str:
        return f"{base or self.base or self.ready.dfs}/{self.name}/{ZONE}/{quote(path)}"

    def call(self, method: str, path: str, query: str = "", **options: Any) -> requests.Response:
        """Send one request to a path of the zone."""
        base = options.pop("base", "")
        url = self.url(path, base) + (f"?{query}" if query else "")
        return self.session.request(method, url, timeout=DEADLINE, **options)

    def put(self, path: str, data: bytes) -> requests.Response:
        """Create, append and flush, as most publishers do; return the response to the flush."""
        assert self.call("PUT", path, "resource=file").status_code == 201
        position = len(data)
        appended = self.call("PATCH", path, "action=append&position=0", data=data)
        assert appended.status_code == 202, appended.text
        return self.call("PATCH", path, f"action=flush&position={position}")

    def rename(self, source: str, target: str, **headers: str) -> requests.Response:
        origin = {"x-ms-rename-source": f"/{self.name}/{ZONE}/{source}"}
        return self.call("PUT", target, headers=origin | headers)

    def files(self, folder: str = "") -> list[str]:
        """Return all files of the zone, or of a folder of it."""
        base = f"{ZONE}/{folder}".rstrip("/")
        return [path[len(base) + 1 :] for path in self.storage.files_below(base)]


def parquet(**columns: Any) -> bytes:
    """Return a Parquet file in memory."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def number(n: int, ending: str = ".parquet") -> str:
    return f"{n:020d}{ending}"


@contextmanager
def serving(workspace: Workspace, control: Any = None, **settings: Any) -> Iterator[Ready]:
    """Run a server in a thread while the block runs."""
    stop, opened = Event(), Event()
    found: list[Ready] = []
    failed: list[BaseException] = []

    def ready(where: Ready) -> None:
        found.append(where)
        opened.set()

    def run() -> None:
        try:
            mirrors = control or Mirrors(allowed=False)
            run_server(workspace, mirrors, Settings(**{"port": 0} | settings), stop, ready)
        except BaseException as error:
            failed.append(error)
        finally:
            opened.set()

    thread = Thread(target=run)
    thread.start()
    try:
        assert opened.wait(DEADLINE)
        assert not failed, failed
        yield found[0]
    finally:
        stop.set()
        thread.join(DEADLINE)
        assert not thread.is_alive()


@contextmanager
def session_of(ready: Ready) -> Iterator[requests.Session]:
    """Yield a session with the server's token and authority."""
    with requests.Session() as session:
        session.trust_env = False
        session.verify = ready.ca
        session.headers["Authorization"] = f"Bearer {ready.token}"
        yield session


def new_lake(workspace: Workspace, ready: Ready, session: requests.Session, name: str) -> Lake:
    return Lake(ready, workspace.create(name, "", DEFINITION), session)
