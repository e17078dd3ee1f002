"""The server's token as bearer token, client secret, account key or shared access signature.

Every comparison takes constant time. No token is ever logged. The OAuth endpoints provide the
metadata and tokens that identity libraries request.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mirrorlake.errors import UsageError
from mirrorlake_serve.protocol import RequestError

VARIABLE = "MIRRORLAKE_TOKEN"
LIFETIME = 3600  # seconds until an issued token expires
_SHORTEST = 16
_SIGNED = (
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type"),
    *("date", "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)
_METADATA = re.compile(r"/([^/]+)(?:/v2\.0)?/\.well-known/openid-configuration\Z")
_TOKEN = re.compile(r"/([^/]+)/oauth2(?:/v2\.0)?/token\Z")
_DISCOVERY = "/common/discovery/instance"
_LARGEST = 64 << 10


def load_token(folder: Path) -> str:
    """Return the server's token.

    It is `MIRRORLAKE_TOKEN`, or the content of the file `token`, which is created if it is missing.

    Args:
        folder: the folder of the file; outside of every lake.

    Raises:
        UsageError: the variable's value is too short or has invalid characters.
    """
    if given := os.environ.get(VARIABLE):
        if len(given) < _SHORTEST or not given.isascii() or any(c <= " " for c in given):
            raise UsageError(
                f"{VARIABLE} is not a valid token.",
                hint=f"use at least {_SHORTEST} ASCII characters without spaces, for example the "
                "output of `openssl rand -hex 32`.",
            )
        return given
    path = folder / "token"
    write_private(path, secrets.token_hex(32).encode())
    return path.read_text(encoding="ascii").strip()


def write_private(path: Path, data: bytes) -> None:
    """Create a file atomically that only its owner can read; do nothing if it exists."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    staged = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.link(staged, path)
    except FileExistsError:
        pass  # another server has created it
    finally:
        staged.unlink(missing_ok=True)


class Tokens:
    """Issue short-lived tokens, and check these and the server's own token.

    Args:
        token: the server's token.
        now: returns the time in seconds since 1970.
    """

    def __init__(self, token: str, now: Callable[[], float] = time.time) -> None:
        self._token = token.encode()
        self._now = now
        self._key = hmac.digest(self._token, b"mirrorlake access tokens", "sha256")

    def is_secret(self, text: str) -> bool:
        """Return whether a text is the server's token."""
        return hmac.compare_digest(text.encode(errors="replace"), self._token)

    def issue(self, audience: str, issuer: str) -> str:
        """Return a token that is valid for one hour; it is a JWT, because some clients parse it."""
        now = int(self._now())
        times = {"iat": now, "nbf": now, "exp": now + LIFETIME}
        claims = {"aud": audience, "iss": issuer, "sub": "mirrorlake", "oid": "mirrorlake", **times}
        head = _base64({"alg": "HS256", "typ": "JWT"})
        body = f"{head}.{_base64(claims)}"
        return f"{body}.{self._sign(body)}"

    def is_valid(self, bearer: str) -> bool:
        """Return whether a bearer token is the server's own, or was issued in the last hour."""
        if self.is_secret(bearer):
            return True
        body, _, signature = bearer.rpartition(".")
        expected = self._sign(body).encode()
        if not hmac.compare_digest(signature.encode(errors="replace"), expected):
            return False
        claims = json.loads(_bytes(body.rpartition(".")[2]))
        return bool(claims["exp"] > self._now())

    def _sign(self, body: str) -> str:
        return _text(hmac.digest(self._key, body.encode(errors="replace"), "sha256"))

    def account_keys(self) -> list[bytes]:
        """Return the token as account keys: its bytes, and the bytes that it encodes as Base64."""
        keys = [self._token]
        with contextlib.suppress(binascii.Error):
            keys.append(base64.b64decode(self._token, validate=True))
        return keys

    def is_signed(
        self,
        authorization: str,
        method: str,
        raw_path: str,
        query: Sequence[tuple[str, str]],
        headers: Mapping[str, str],
    ) -> bool:
        """Return whether `SharedKey ACCOUNT:SIGNATURE` signs this request with the account key."""
        account, _, signature = authorization.partition(":")
        fields = [headers.get(name, "") for name in _SIGNED]
        if fields[2] == "0":
            fields[2] = ""
        own = sorted((k, v.strip()) for k, v in headers.items() if k.startswith("x-ms-"))
        parameters: dict[str, list[str]] = {}
        for name, value in query:
            parameters.setdefault(name.lower(), []).append(value)
        text = "\n".join([method, *fields, *(f"{k}:{v}" for k, v in own), f"/{account}{raw_path}"])
        text += "".join(
            f"\n{name}:{','.join(sorted(parameters[name]))}" for name in sorted(parameters)
        )
        found = False
        for key in self.account_keys():
            made = base64.b64encode(hmac.digest(key, text.encode(errors="replace"), "sha256"))
            found |= hmac.compare_digest(made, signature.encode(errors="replace"))
        return found


def account_key(token: str) -> str:
    """Return the token in the form of an account key: Base64."""
    return base64.b64encode(token.encode()).decode()


def is_sas(tokens: Tokens, query: Sequence[tuple[str, str]]) -> bool:
    """Return whether the query has the token as the `sig` of a shared access signature."""
    return any(
        k == "sig" and (tokens.is_secret(v) or tokens.is_secret(unquote(v))) for k, v in query
    )


def _base64(document: Mapping[str, object]) -> str:
    return _text(json.dumps(document, separators=(",", ":")).encode())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def is_oauth(path: str) -> bool:
    """Return whether a path is one of the token endpoints."""
    return path == _DISCOVERY or bool(_METADATA.match(path) or _TOKEN.match(path))


async def answer_oauth(request: Request, tokens: Tokens) -> Response:
    """Respond to a request for a token or for the metadata of the token endpoints."""
    path = request.url.path
    base = f"{request.url.scheme}://{request.headers['host']}"
    if found := _TOKEN.match(path):
        if request.method != "POST":
            raise RequestError(405, "UnsupportedHttpVerb", "Request a token with POST.")
        return await _issue(request, tokens, f"{base}/{found[1]}")
    if request.method not in ("GET", "HEAD"):
        raise RequestError(405, "UnsupportedHttpVerb", "The document is read-only.")
    if found := _METADATA.match(path):
        return JSONResponse(_metadata(f"{base}/{found[1]}"))
    host = request.headers["host"]
    known = {"preferred_network": host, "preferred_cache": host, "aliases": [host]}
    endpoint = f"{base}/common/v2.0/.well-known/openid-configuration"
    return JSONResponse(
        {"tenant_discovery_endpoint": endpoint, "api-version": "1.1", "metadata": [known]}
    )


def _metadata(issuer: str) -> dict[str, Any]:
    return {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/oauth2/authorize",
        "token_endpoint": f"{issuer}/oauth2/v2.0/token",
        "jwks_uri": f"{issuer}/discovery/keys",
        "token_endpoint_auth_methods_supported": ["client_secret_post"],
        "response_types_supported": ["code"],
        "subject_types_supported": ["pairwise"],
        "id_token_signing_alg_values_supported": ["HS256"],
        "scopes_supported": ["openid"],
    }


async def _issue(request: Request, tokens: Tokens, issuer: str) -> Response:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST:
            return _refused("invalid_request", "The form is too large.", 400)
    form = parse_qs(body.decode(errors="replace"), max_num_fields=None)
    if form.get("grant_type") != ["client_credentials"]:
        return _refused(
            "unsupported_grant_type", "Only the grant type client_credentials is supported.", 400
        )
    if not tokens.is_secret(form.get("client_secret", [""])[0]):
        text = "The client secret is not this server's token."
        return _refused("invalid_client", text, 401)
    audience = form.get("scope", form.get("resource", [""]))[0].removesuffix("/.default")
    lasts = {"expires_in": LIFETIME, "ext_expires_in": LIFETIME}
    access = tokens.issue(audience, issuer)
    return JSONResponse({"token_type": "Bearer", **lasts, "access_token": access})


def _refused(code: str, text: str, status: int) -> Response:
    document = {"error": code, "error_description": text}
    return JSONResponse(document, status, {"x-ms-error-code": code})
