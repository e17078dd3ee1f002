"""An HTTP proxy between a lake and its store that loses answers, as networks and gateways do.

The store carries out a request whose answer is lost; the client gets another answer.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_CODES = {
    200: "",
    403: "AccessDenied",
    404: "NoSuchUpload",
    412: "PreconditionFailed",
    429: "SlowDown",
    500: "InternalError",
    503: "SlowDown",
}
RESET = 0
"""Instead of a status: the connection is closed without an answer."""


@dataclass(frozen=True)
class Request:
    """One request on its way to the store."""

    method: str
    path: str
    conditional: bool

    @property
    def key(self) -> str:
        """Which file it is about."""
        return urlsplit(self.path).path


@dataclass(frozen=True)
class Fault:
    """The treatment of a request.

    Attributes:
        answer: the status for the client, `RESET`, or None for the store's own answer.
        times: how often the store gets the request; 0 hides it from the store.
        delay: the seconds before the client gets an answer.
    """

    answer: int | None = None
    times: int = 1
    delay: float = 0


Faults = Callable[[Request], Fault]


def no_faults(_request: Request) -> Fault:
    return Fault()


class LostAnswers:
    """Loses the first answer to each conditional request; the client gets one of `answers` instead.

    Args:
        answers: the statuses for the client, one per attempt; then it gets the store's own answers.
            The store does not get the request from the second attempt on.
        only: a substring of the keys that are concerned.
    """

    def __init__(self, *answers: int, only: str = "") -> None:
        self._answers = answers
        self._only = only
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Fault:
        if not request.conditional or self._only not in request.key:
            return Fault()
        with self._lock:
            seen = self._seen.get(request.key, 0)
            self._seen[request.key] = seen + 1
        if seen >= len(self._answers):
            return Fault()
        return Fault(self._answers[seen], times=0 if seen else 1)

    @property
    def lost(self) -> int:
        """Of how many files an answer was lost."""
        return len(self._seen)


class RandomFaults:
    """Errors, lost answers, delays and repeats at random, for a share of all requests."""

    def __init__(self, seed: int, share: float = 0.1) -> None:
        self._random = random.Random(seed)
        self._share = share
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Fault:
        with self._lock:
            if self._random.random() >= self._share:
                return Fault()
            kind = self._random.randrange(5)
            status = self._random.choice((500, 503, 429))
            delay = self._random.random() / 5
        if kind == 0:
            return Fault(status, times=0)
        if kind == 1:
            return Fault(RESET)
        if kind == 2:
            return Fault(status if request.method != "GET" else 503)
        if kind == 3:
            return Fault(delay=delay)
        return Fault(times=2 if request.method in ("GET", "HEAD", "PUT") else 1)


class FaultProxy:
    """A proxy on its own port; `faults` can be replaced at any time.

    Args:
        upstream: the store's port.
    """

    def __init__(self, upstream: int) -> None:
        self.faults: Faults = no_faults
        self.requests: list[Request] = []
        proxy = self

        class Handler(_Handler):
            port = upstream

            def decide(self, request: Request) -> Fault:
                proxy.requests.append(request)
                return proxy.faults(request)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop the proxy."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    port = 0

    def decide(self, request: Request) -> Fault:
        raise NotImplementedError

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        conditional = "If-None-Match" in self.headers
        fault = self.decide(Request(self.command, self.path, conditional))
        status, headers, data = 0, [], b""
        for _ in range(fault.times):
            status, headers, data = self._forward(body)
        time.sleep(fault.delay)
        if fault.answer == RESET and fault.answer is not None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if fault.answer is not None:
            code = _CODES[fault.answer]
            status = fault.answer
            data = f"<Error><Code>{code}</Code><Message>lost</Message></Error>".encode()
            headers = [
                ("Content-Type", "application/xml"),
                ("Content-Length", str(len(data))),
                ("ETag", '"0"'),
            ]
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("expect", "connection"):
                upstream.putheader(name, value)
        upstream.endheaders(body)
        answer = upstream.getresponse()
        data = answer.read()
        dropped = ("transfer-encoding", "connection", "content-length")
        headers = [(n, v) for n, v in answer.getheaders() if n.lower() not in dropped]
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        upstream.close()
        return answer.status, [*headers, ("Content-Length", length or "0")], data

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle
