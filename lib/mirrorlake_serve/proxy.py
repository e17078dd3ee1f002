"""For clients whose addresses are hard-coded: a CONNECT proxy that knows only OneLake's names.

`HTTPS_PROXY` leads such a client here; every name but these is refused, so that nobody can use the
server to get anywhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import re

NAMES = (
    "onelake.dfs.fabric.microsoft.com",
    "onelake.blob.fabric.microsoft.com",
    "login.microsoftonline.com",
    "api.fabric.microsoft.com",
)
_CONNECT = re.compile(rb"CONNECT ([A-Za-z0-9.-]{1,253}):(\d{1,5}) HTTP/1\.[01]\r\n")
_LONGEST_HEAD = 8 << 10
_CHUNK = 64 << 10
_PATIENCE = 10  # seconds for the request
_IDLE = 600  # seconds that a tunnel may rest
_MOST = 512  # tunnels at once


class Proxy:
    """Leads connections for OneLake's names to the server's own port.

    Args:
        port: the server's https port on this machine.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.AbstractServer | None = None
        self._tunnels: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Opens a free port on this machine, and returns it."""
        self._server = await asyncio.start_server(self._enter, "127.0.0.1", 0, limit=_LONGEST_HEAD)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Closes the port and every tunnel."""
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
