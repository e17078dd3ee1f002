"""The lines to paste, for each kind of client."""

from __future__ import annotations

import json
import shlex

from mirrorlake_serve.server import Ready
from mirrorlake_serve.tokens import account_key


def export_lines(ready: Ready) -> str:
    """What to export for Python, Node, Go, .NET and azcopy, as shell text."""
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
        f"http           {ready.http}    with the account key below, or a SAS with sig=TOKEN",
        f"token          {ready.token}",
        f"account key    {account_key(ready.token)}",
        "",
        "# Identity libraries: tenant `adfs`, any client id, the token as the client's secret.",
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
            "# Clients with OneLake's addresses in them (Node 24 also needs NODE_USE_ENV_PROXY=1)",
            f"export HTTPS_PROXY={quote(ready.proxy)}",
        ]
    return "\n".join(lines)
