"""Deterministic lines of an application's log, for the benches.

Users of many tenants work in sessions. A session sends requests, and a request writes some lines in
the services that it passes. A line has the request's trace id, the session's id, a message from one
of the services' templates, and properties as JSON, like those of structured loggers. Lines are in
the order of time, so those of all tenants are mixed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

TENANTS = 20_000
START, HOUR = 1_700_000_000_000_000, 3_600_000_000  # microseconds
REQUESTS = 10  # of a session, on average
LINES = (2, 8)  # of a request, at least and at most
PODS = 12
_STEP = 0x9E3779B97F4A7C15F39CC0605CEDC835
_REGIONS = ("westeurope", "northeurope", "eastus2", "westus3", "southeastasia")
_BUILDS = ("2026.11.3+4f2a9c1", "2026.11.4+b07d3e8")
_AGENTS = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/126.0.0.0 Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 Version/17.5 Safari",
    "Mozilla/5.0 (X11; Linux x86_64; rv:127.0) Gecko/20100101 Firefox/127.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
    "okhttp/4.12.0",
    "python-requests/2.32.3",
)
_ROUTES = (
    "GET /api/v2/orders",
    "GET /api/v2/orders/{id}",
    "POST /api/v2/orders",
    "GET /api/v2/items/{id}",
    "GET /api/v2/items/{id}/stock",
    "PUT /api/v2/customers/{id}",
    "GET /api/v2/search",
    "GET /api/v1/reports/{id}/export",
)
# Frequency, service, level, and the text before a tenant's id and before a measure.
_TEMPLATES = (
    (20, "gateway", "INFO", "Request starting for resource ", ", content length "),
    (20, "gateway", "INFO", "Request finished for resource ", ", microseconds: "),
    (8, "identity", "INFO", "Token accepted for resource ", ", seconds left: "),
    (1, "identity", "WARN", "Token for resource ", " is about to expire, seconds left: "),
    (8, "orders", "INFO", "Loaded order ", ", lines: "),
    (16, "orders", "INFO", "Executed DbCommand for key ", ", microseconds: "),
    (4, "orders", "DEBUG", "Entity ", " is tracked by the context, version "),
    (5, "stock", "INFO", "Reserved item ", ", pieces left in the warehouse: "),
    (1, "stock", "WARN", "Item ", " is below its reorder level: "),
    (4, "search", "INFO", "Query plan ", " executed, hits: "),
    (4, "billing", "INFO", "Price calculated for item ", ", cents: "),
    (1, "billing", "ERROR", "Payment provider timed out for order ", ", attempt "),
    (12, "cache", "DEBUG", "Cache hit for key item:", ", bytes "),
    (6, "cache", "DEBUG", "Cache miss for key item:", ", loaded in microseconds: "),
)

_WEIGHTS = np.array([one[0] for one in _TEMPLATES], float)

Numbers = npt.NDArray[np.int64]
Moments = npt.NDArray[np.float64]


def guid(number: int) -> str:
    """Return a GUID for a number; each tenant has its own numbers."""
    return str(uuid.UUID(int=(number + 7) * _STEP % 2**128))


def log_files(hour: int, lines: int, files: int) -> Iterator[pa.Table]:
    """Yield an hour's lines in files of some minutes.

    Other hours have other sessions of the same tenants.
    """
    rng = np.random.default_rng(hour)
    sessions = int(lines / REQUESTS / np.mean(LINES) * 1.2) + 100
    # A few tenants cause most of the lines.
    tenant = rng.zipf(1.1, sessions) % TENANTS
    session = np.repeat(np.arange(sessions), rng.geometric(1 / REQUESTS, sessions))
    begin = _walk(session, rng.exponential(20e6, len(session)))
    begin = begin + rng.uniform(0, HOUR, sessions)[session]
    counts = rng.integers(LINES[0], LINES[1] + 1, len(session))
    request = np.repeat(np.arange(len(session)), counts)[:lines]
    # A session that runs past the end of the hour starts at its begin instead.
    passed = (begin[request] + _walk(request, rng.gamma(1.5, 8_000, len(request)))) % HOUR
    order = np.argsort(passed, kind="stable")
    at, request = START + hour * HOUR + passed[order].astype(np.int64), request[order]
    traces, whose, what = (
        _traces(rng, len(session)), _owners(rng, sessions), _requests(rng, len(session))
    )  # fmt: skip
    names = pa.array([guid(number) for number in range(TENANTS)])
    guids = pa.array([guid(2**40 + hour * 2**24 + number) for number in range(sessions)])
    resources = tenant[session] * 1_000 + rng.geometric(0.01, len(session)) % 1_000
    for part in np.array_split(np.arange(len(at)), files):
        which = request[part]
        template = rng.choice(len(_TEMPLATES), len(part), p=_WEIGHTS / _WEIGHTS.sum())
        owner = pa.array(session[which])
        yield pa.table(
            {
                "at": pa.array(at[part]).cast(pa.timestamp("us", "UTC")),
                "tenant": names.take(pa.array(tenant[session[which]])),
                "service": _pick([one[1] for one in _TEMPLATES], template),
                "host": _hosts(rng, template),
                "level": _pick([one[2] for one in _TEMPLATES], template),
                "trace": traces.take(pa.array(which)),
                "session": guids.take(owner),
                "message": _messages(rng, template, resources[which]),
                "properties": pc.binary_join_element_wise(
                    whose.take(owner), what.take(pa.array(which)), ""
                ),
            }
        )


def _walk(owner: Numbers, steps: Moments) -> Moments:
    """Return running sums that restart at each new owner."""
    passed: Moments = np.cumsum(steps)
    return passed - passed[np.searchsorted(owner, owner)]


def _pick(words: Sequence[str], which: Numbers) -> pa.Array:
    return pa.array(words).take(pa.array(which))


def _hosts(rng: np.random.Generator, template: Numbers) -> pa.Array:
    services = [one[1] for one in _TEMPLATES]
    pods = [f"{name}-7d9f-{pod:02d}.prod.example.org" for name in services for pod in range(PODS)]
    return _pick(pods, template * PODS + rng.integers(0, PODS, len(template)))


def _traces(rng: np.random.Generator, requests: int) -> pa.Array:
    """Return random ids of 16 bytes in hexadecimal digits."""
    digits = rng.bytes(16 * requests).hex()
    return pa.array([digits[at : at + 32] for at in range(0, len(digits), 32)])


def _messages(rng: np.random.Generator, template: Numbers, resource: Numbers) -> pa.Array:
    measure = rng.gamma(1.2, 3_000, len(template)).astype(np.int64)
    parts = (
        _pick([one[3] for one in _TEMPLATES], template),
        pa.array(resource).cast("string"),
        _pick([one[4] for one in _TEMPLATES], template),
        pa.array(measure).cast("string"),
    )
    return pc.binary_join_element_wise(*parts, "")


def _owners(rng: np.random.Generator, sessions: int) -> pa.Array:
    """Return the properties of each session, without those of its requests."""
    agents, regions = (rng.integers(0, len(some), sessions) for some in (_AGENTS, _REGIONS))
    builds, users = rng.integers(0, len(_BUILDS), sessions), rng.integers(0, 500_000, sessions)
    ips = rng.integers(0, 256, (3, sessions))
    return pa.array(
        f'{{"user":"u-{user:06d}","client":{{"ip":"10.{a}.{b}.{c}","agent":"{_AGENTS[agent]}"}},'
        f'"region":"{_REGIONS[region]}","build":"{_BUILDS[build]}"'
        for user, a, b, c, agent, region, build in zip(
            users, *ips, agents, regions, builds, strict=True
        )
    )


def _requests(rng: np.random.Generator, requests: int) -> pa.Array:
    """Return the properties of each request."""
    routes = rng.integers(0, len(_ROUTES), requests)
    status = rng.choice([200, 201, 304, 404, 500], requests, p=[0.8, 0.08, 0.07, 0.04, 0.01])
    texts = [_pick(_ROUTES, routes), pa.array(status).cast("string")]
    return pc.binary_join_element_wise(',"route":"', texts[0], '","status":', texts[1], "}", "")
