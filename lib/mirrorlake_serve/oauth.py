"""The token endpoints that identity libraries ask: metadata, instance discovery, tokens."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mirrorlake_serve.errors import RequestError
from mirrorlake_serve.tokens import LIFETIME, Tokens

_METADATA = re.compile(r"/([^/]+)(?:/v2\.0)?/\.well-known/openid-configuration\Z")
_TOKEN = re.compile(r"/([^/]+)/oauth2(?:/v2\.0)?/token\Z")
_DISCOVERY = "/common/discovery/instance"
_LARGEST = 64 << 10


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
