"""The server's token, and how clients present it: bearer, client secret, account key, SAS.

Every comparison takes constant time. No token is ever logged. The OAuth endpoints at the end are
those that identity libraries ask for metadata and tokens.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mirrorlake.errors import UsageError
from mirrorlake_serve.protocol import RequestError

VARIABLE = "MIRRORLAKE_TOKEN"
LIFETIME = 3600  # seconds that an issued token lasts
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
    """The server's token: from `MIRRORLAKE_TOKEN`, or the file in a folder, made at first use.

    Args:
        folder: where the file lies; outside every lake.

    Raises:
        UsageError: the variable holds a token that is too short or has odd characters.
    """
    if given := os.environ.get(VARIABLE):
        if len(given) < _SHORTEST or not given.isascii() or any(c <= " " for c in given):
            raise UsageError(
                f"{VARIABLE} is not a token.",
                hint=f"at least {_SHORTEST} ASCII characters without spaces, such as "
                "`openssl rand -hex 32` prints.",
            )
        return given
    path = folder / "token"
    write_private(path, secrets.token_hex(32).encode())
    return path.read_text(encoding="ascii").strip()


def write_private(path: Path, data: bytes) -> None:
    """Makes a file that only its owner may read, if there is none; whole or not at all."""
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
        pass  # another server was quicker
    finally:
        staged.unlink(missing_ok=True)


class Tokens:
    """Issues short-lived tokens for the server's own, and knows both.

    Args:
        token: the server's token.
        now: the clock, in seconds since 1970.
    """

    def __init__(self, token: str, now: object = time.time) -> None:
        self._token = token.encode()
        self._now = now if callable(now) else time.time
        self._key = hmac.digest(self._token, b"mirrorlake access tokens", "sha256")

    def is_secret(self, text: str) -> bool:
        """Whether a text is the server's token."""
        return hmac.compare_digest(text.encode(errors="replace"), self._token)

    def issue(self, audience: str, issuer: str) -> str:
        """A token of an hour, in the form of a JWT, which some clients look into."""
        now = int(self._now())
        times = {"iat": now, "nbf": now, "exp": now + LIFETIME}
        claims = {"aud": audience, "iss": issuer, "sub": "mirrorlake", "oid": "mirrorlake", **times}
        head = _base64({"alg": "HS256", "typ": "JWT"})
        body = f"{head}.{_base64(claims)}"
        return f"{body}.{self._sign(body)}"

    def is_valid(self, bearer: str) -> bool:
        """Whether a bearer token is the server's own, or one it issued less than an hour ago."""
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
        """The token as an account key: what Base64 of it, or the token as Base64, stands for."""
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
        """Whether `SharedKey ACCOUNT:SIGNATURE` was made of this request with the account key."""
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
    """The token as clients want an account key: Base64."""
    return base64.b64encode(token.encode()).decode()


def is_sas(tokens: Tokens, query: Sequence[tuple[str, str]]) -> bool:
    """Whether the query has the token as a shared access signature's `sig`."""
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
    """Whether a path is one of the token endpoints."""
    return path == _DISCOVERY or bool(_METADATA.match(path) or _TOKEN.match(path))


async def answer_oauth(request: Request, tokens: Tokens) -> Response:
    """Answers one request for a token, or for what comes before one."""
    path = request.url.path
    base = f"{request.url.scheme}://{request.headers['host']}"
    if found := _TOKEN.match(path):
        if request.method != "POST":
            raise RequestError(405, "UnsupportedHttpVerb", "A token is asked for by POST.")
        return await _issue(request, tokens, f"{base}/{found[1]}")
    if request.method not in ("GET", "HEAD"):
        raise RequestError(405, "UnsupportedHttpVerb", "This document is only read.")
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
        return _refused("unsupported_grant_type", "Only client_credentials is known here.", 400)
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
