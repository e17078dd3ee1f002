"""The running server: its ports, its names, its certificates, and what it says when it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event

import uvicorn

from mirrorlake.errors import SetupError
from mirrorlake_serve.app import StorageApp
from mirrorlake_serve.certificates import Authority
from mirrorlake_serve.debezium import DebeziumDoor
from mirrorlake_serve.lakes import MirrorControl, Workspace, state_home
from mirrorlake_serve.proxy import NAMES, Proxy
from mirrorlake_serve.tokens import Tokens, load_token

_LOCAL = ("localhost", "127.0.0.1", "::1")
_ALIASES = ("onelake.dfs.localhost", "onelake.blob.localhost")
_KEEP_ALIVE = 75  # seconds; pools of clients keep connections for 60
_BACKLOG = 1024
_GRACE = 10  # seconds that requests have to end when the server stops


@dataclass(frozen=True)
class Settings:
    """How a server is started.

    Attributes:
        port: of https; the blob dialect's is the next one, http's the one after. 0: free ones.
        bind: the address for https; http is for this machine alone.
        names: further names of this machine, for the certificate and the check of `Host`.
        proxy: whether a proxy for clients with hard-coded names runs, too.
    """

    port: int = 8443
    bind: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    proxy: bool = False


@dataclass(frozen=True)
class Ready:
    """Where a server is to be found.

    Attributes:
        dfs: the address of the DFS dialect, which takes both; also of tokens.
        blob: the address of the blob dialect.
        rest: the address of the control plane, whose paths begin with `/v1`.
        http: both dialects without TLS, for account keys and shared access signatures.
        ca: the path of the authority's certificate, PEM.
        item: the first lake's GUID; "" if there is none yet.
    """

    dfs: str
    blob: str
    rest: str
    workspace: str
    item: str
    token: str
    ca: str
    http: str = ""
    proxy: str = ""

    def document(self) -> dict[str, str]:
        """What `--json` prints."""
        names = ("dfs", "blob", "rest", "workspace", "item", "token", "ca")
        return {name: getattr(self, name) for name in names}


class _Server(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(
    workspace: Workspace,
    control: MirrorControl,
    settings: Settings,
    stop: Event,
    on_ready: Callable[[Ready], None],
) -> None:
    """Serves until `stop` is set.

    Args:
        workspace: the lakes.
        control: the mirror.
        settings: ports and names.
        stop: set by a signal's handler or another thread.
        on_ready: called once every port is open.

    Raises:
        SetupError: a port is taken.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    asyncio.run(_serve(workspace, control, settings, stop, on_ready))


async def _serve(
    workspace: Workspace,
    control: MirrorControl,
    settings: Settings,
    stop: Event,
    on_ready: Callable[[Ready], None],
) -> None:
    home = state_home()
    token = load_token(home)
    authority = Authority(home)
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(s) for s in _listen(settings)]
        secure, blob, plain = (s.getsockname()[1] for s in sockets)
        names = [*_LOCAL, *_ALIASES, *settings.names]
        if not _is_any(settings.bind) and settings.bind not in names:
            names.append(settings.bind)
        names += NAMES if settings.proxy else ()
        door = DebeziumDoor(workspace)
        opened.callback(door.close)
        app = StorageApp(workspace, Tokens(token), control, door, hosts=names, blob_ports=[blob])
        servers = [_server(app, None), _server(app, None)]
        context = authority.context(names)
        servers[0].config.load()
        servers[0].config.ssl = context
        running = [
            asyncio.create_task(servers[0].serve(sockets[:2])),
            asyncio.create_task(servers[1].serve(sockets[2:])),
        ]
        proxy = Proxy(secure)
        proxied = await proxy.start() if settings.proxy else 0
        while not all(server.started for server in servers):
            await asyncio.sleep(0.01)
        host = "localhost" if _is_any(settings.bind) else _as_host(settings.bind)
        door.resume()
        first = workspace.items[0].id if workspace.items else ""
        on_ready(
            Ready(
                f"https://{host}:{secure}",
                f"https://{host}:{blob}",
                f"https://{host}:{secure}",
                workspace.id,
                first,
                token,
                str(authority.path),
                f"http://127.0.0.1:{plain}",
                f"http://127.0.0.1:{proxied}" if proxied else "",
            )
        )
        await _until(stop, running)
        await proxy.close()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*running)


async def _until(stop: Event, running: list[asyncio.Task[None]]) -> None:
    while not stop.is_set() and not any(task.done() for task in running):
        await asyncio.sleep(0.05)


def _server(app: StorageApp, level: int | None) -> _Server:
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level=level,
        access_log=False,
        lifespan="off",
        ws="none",
        http="h11",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_GRACE,
        h11_max_incomplete_event_size=64 << 10,
    )
    return _Server(config)


def _listen(settings: Settings) -> list[socket.socket]:
    """The ports of https, of https for blobs, and of http on this machine."""
    ports = [0] * 3 if settings.port == 0 else [settings.port + number for number in range(3)]
    found: list[socket.socket] = []
    try:
        for bind, port in zip((settings.bind, settings.bind, "127.0.0.1"), ports, strict=True):
            family = socket.AF_INET6 if ":" in bind else socket.AF_INET
            found.append(_open(family, bind, port))
    except OSError as error:
        for one in found:
            one.close()
        raise SetupError(
            f"The ports {ports[0]} to {ports[-1]} of {settings.bind} can't be had: {error}.",
            hint="choose another with --port; 0 takes free ones.",
        ) from error
    return found


def _open(family: socket.AddressFamily, bind: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((bind, port))
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _is_any(bind: str) -> bool:
    try:
        return ipaddress.ip_address(bind).is_unspecified
    except ValueError:
        return False


def _as_host(bind: str) -> str:
    if bind == "127.0.0.1":
        return "localhost"
    return f"[{bind}]" if ":" in bind else bind
