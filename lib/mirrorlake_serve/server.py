"""Run the server: ports, host names, certificates, and the addresses that it reports.

Clients refuse to send a token over http, so the server speaks https under a certificate authority
of its own. The authority's key is stored beside the token, readable by its owner only; the server's
certificate is made at each start and kept in memory. The CONNECT proxy serves clients with
hard-coded addresses: it forwards OneLake's names to this server and refuses every other name.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import re
import shlex
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from threading import Event

import trustme
import uvicorn

from mirrorlake.errors import SetupError
from mirrorlake_serve.app import StorageApp
from mirrorlake_serve.lakes import Mirrors, Workspace, state_home
from mirrorlake_serve.rest import DebeziumSink
from mirrorlake_serve.tokens import Tokens, account_key, load_token, write_private

_DAYS = 397  # the longest validity that browsers and some clients accept
NAMES = (
    "onelake.dfs.fabric.microsoft.com",
    "onelake.blob.fabric.microsoft.com",
    "login.microsoftonline.com",
    "api.fabric.microsoft.com",
)
_CONNECT = re.compile(rb"CONNECT ([A-Za-z0-9.-]{1,253}):(\d{1,5}) HTTP/1\.[01]\r\n")
_LONGEST_HEAD = 8 << 10
_CHUNK = 64 << 10
_PATIENCE = 10  # seconds for the head of a request
_IDLE = 600  # seconds without data after which a tunnel is closed
_MOST = 512  # tunnels at once
_LOCAL = ("localhost", "127.0.0.1", "::1")
_ALIASES = ("onelake.dfs.localhost", "onelake.blob.localhost")
_KEEP_ALIVE = 75  # seconds; connection pools of clients keep connections for 60
_BACKLOG = 1024
_GRACE = 10  # seconds for running requests when the server stops


class Authority:
    """The certificate authority in a folder; it is created when it is first used.

    Args:
        folder: the folder of its key and certificate; outside of every lake.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ca.pem"
        self._both = folder / "ca-key.pem"
        if not self._both.exists():
            made = trustme.CA(organization_name="mirrorlake")
            both = made.private_key_pem.bytes() + made.cert_pem.bytes()
            write_private(self._both, both)  # one file, so that key and certificate match
        data = self._both.read_bytes()
        begin = data.index(b"-----BEGIN CERTIFICATE-----")
        self._ca = trustme.CA.from_pem(data[begin:], data[:begin])
        if not self.path.exists() or self.path.read_bytes() != data[begin:]:
            self.path.unlink(missing_ok=True)
            write_private(self.path, data[begin:])

    def context(self, names: Iterable[str]) -> ssl.SSLContext:
        """Return a TLS context for a server with these host names."""
        until = datetime.now(timezone.utc) + timedelta(days=_DAYS)
        issued = self._ca.issue_cert(*names, organization_name="mirrorlake", not_after=until)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        issued.configure_cert(context)
        return context


class Proxy:
    """A CONNECT proxy that forwards OneLake's host names to the server's own port.

    Args:
        port: the server's https port on this machine.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.AbstractServer | None = None
        self._tunnels: set[asyncio.Task[None]] = set()

    async def start(self, own: socket.socket) -> None:
        """Accept connections on an open port."""
        self._server = await asyncio.start_server(self._enter, sock=own, limit=_LONGEST_HEAD)

    async def close(self) -> None:
        """Close the port and all tunnels."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tunnels):
            task.cancel()
        await asyncio.gather(*self._tunnels, return_exceptions=True)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tunnels.add(task)
            task.add_done_callback(self._tunnels.discard)
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            pass
        except asyncio.LimitOverrunError:
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE)
        found = _CONNECT.match(head)
        known = found and found[1].decode().lower() in NAMES and found[2] == b"443"
        if not known or len(self._tunnels) > _MOST:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(b"HTTP/1.1 200 Connection Established\r\n\r\n")
            await writer.drain()
            await asyncio.gather(_pipe(reader, back), _pipe(there, writer))
        finally:
            back.close()


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        while chunk := await asyncio.wait_for(source.read(_CHUNK), _IDLE):
            sink.write(chunk)
            await sink.drain()
    with contextlib.suppress(OSError):
        sink.close()


@dataclass(frozen=True)
class Settings:
    """The settings of a server.

    Attributes:
        port: the https port; the next port is for the blob dialect and the one after it for http.
            With
            0 the server uses free ports.
        bind: the address on which https listens; http listens on this machine only.
        names: further host names, for the certificate and for the check of `Host`.
        proxy: whether to run a proxy for clients with hard-coded OneLake addresses.
        proxy_port: the proxy's port on this machine; with 0, a free one.
    """

    port: int = 8443
    bind: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    proxy: bool = False
    proxy_port: int = 0


@dataclass(frozen=True)
class Ready:
    """The addresses and credentials of a running server.

    Attributes:
        dfs: the address of the DFS dialect, which accepts both dialects, and of tokens.
        blob: the address of the blob dialect.
        rest: the address of the control plane, whose paths begin with `/v1`.
        workspace: the workspace's GUID.
        item: the first lake's GUID; empty if the server has no lake yet.
        token: the server's token.
        ca: the path of the authority's certificate, in PEM.
        http: the address of both dialects without TLS, for account keys and shared access
            signatures.
        proxy: the address of the proxy; empty if it does not run.
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
        """Return the document that `--json` prints."""
        return {**asdict(self), "account_key": account_key(self.token)}


class _Server(uvicorn.Server):
    """A server that does not handle signals; the command does."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(
    workspace: Workspace,
    mirrors: Mirrors,
    settings: Settings,
    stop: Event,
    on_ready: Callable[[Ready], None],
) -> None:
    """Run the server until `stop` is set.

    Args:
        workspace: the lakes.
        mirrors: the mirrors of the lakes.
        settings: ports and host names.
        stop: set by a signal handler or another thread.
        on_ready: called once all ports are open.

    Raises:
        SetupError: a port is in use.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    asyncio.run(_serve(workspace, mirrors, settings, stop, on_ready))


async def _serve(
    workspace: Workspace,
    mirrors: Mirrors,
    settings: Settings,
    stop: Event,
    on_ready: Callable[[Ready], None],
) -> None:
    home = state_home()
    token = load_token(home)
    authority = Authority(home)
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(s) for s in _listen(settings)]
        secure, blob, plain, *proxied = (s.getsockname()[1] for s in sockets)
        names = [*_LOCAL, *_ALIASES, *settings.names]
        if not _is_any(settings.bind) and settings.bind not in names:
            names.append(settings.bind)
        names += NAMES if settings.proxy else ()
        sink = DebeziumSink(workspace)
        opened.callback(sink.close)
        app = StorageApp(workspace, Tokens(token), mirrors, sink, hosts=names, blob_ports=[blob])
        servers = [_server(app, None), _server(app, None)]
        context = authority.context(names)
        servers[0].config.load()
        servers[0].config.ssl = context
        running = [
            asyncio.create_task(servers[0].serve(sockets[:2])),
            asyncio.create_task(servers[1].serve(sockets[2:3])),
        ]
        proxy = Proxy(secure)
        for own in sockets[3:]:
            await proxy.start(own)
        while not all(server.started for server in servers):
            await asyncio.sleep(0.01)
        host = "localhost" if _is_any(settings.bind) else _as_host(settings.bind)
        sink.resume()
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
                f"http://127.0.0.1:{proxied[0]}" if proxied else "",
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
    """Open the ports of https, of https for blobs, of http on this machine, and of the proxy."""
    ports = [0] * 3 if settings.port == 0 else [settings.port + number for number in range(3)]
    places = list(zip((settings.bind, settings.bind, "127.0.0.1"), ports, strict=True))
    places += [("127.0.0.1", settings.proxy_port)] * settings.proxy
    found: list[socket.socket] = []
    try:
        for bind, port in places:
            family = socket.AF_INET6 if ":" in bind else socket.AF_INET
            found.append(_open(family, bind, port))
    except OSError as error:
        for one in found:
            one.close()
        raise SetupError(
            f"Port {port} of {bind} can't be opened: {error}.",
            hint="choose others with --port and --proxy-port; 0 uses free ports.",
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


def export_lines(ready: Ready) -> str:
    """Return shell text with the variables for Python, Node, Go, .NET and azcopy."""
    quote = shlex.quote
    zone = f"{ready.dfs}/{ready.workspace}/{ready.item or 'ITEM'}/Files/LandingZone"
    host = ready.dfs.removeprefix("https://")
    azcopy = json.dumps(
        {
            "access_token": ready.token,
            "_token_refresh_source": "TokenStore",
            "expires_in": "86400",
            "expires_on": "4102444800",
            "not_before": "0",
            "resource": "https://storage.azure.com",
            "token_type": "Bearer",
        },
        separators=(",", ":"),
    )
    lines = [
        f"landing zone   {zone}",
        f"blobs          {ready.blob}    REST {ready.rest}/v1",
        f"http           {ready.http}    with the account key below or a SAS with sig=TOKEN",
        f"token          {ready.token}",
        f"account key    {account_key(ready.token)}",
        "",
        "# Identity libraries: tenant `adfs`, any client id, and the token as client secret",
        f"export AZURE_AUTHORITY_HOST={quote(ready.dfs)} AZURE_TENANT_ID=adfs",
        f"export AZURE_CLIENT_ID=mirrorlake AZURE_CLIENT_SECRET={quote(ready.token)}",
        "# Python (requests, then httpx and aiohttp)",
        f"export REQUESTS_CA_BUNDLE={quote(ready.ca)} SSL_CERT_FILE={quote(ready.ca)}",
        "# Node",
        f"export NODE_EXTRA_CA_CERTS={quote(ready.ca)}",
        "# Go and .NET",
        f"export SSL_CERT_FILE={quote(ready.ca)}",
        f"# azcopy … --from-to=LocalBlob --trusted-microsoft-suffixes={host}",
        f"export AZCOPY_OAUTH_TOKEN_INFO={quote(azcopy)}",
    ]
    if ready.proxy:
        lines += [
            "# Clients with hard-coded OneLake addresses (Node 24 also needs NODE_USE_ENV_PROXY=1)",
            f"export HTTPS_PROXY={quote(ready.proxy)}",
        ]
    return "\n".join(lines)
