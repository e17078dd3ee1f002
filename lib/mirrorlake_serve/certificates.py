"""TLS without anybody's help: a certificate authority of our own, and a certificate at each start.

Clients refuse to send a token over http, so there has to be https. The authority's key lies beside
the token, readable by its owner only; the server's certificate lives in memory and ends with it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import trustme

from mirrorlake_serve.tokens import write_private

_DAYS = 397  # the longest that browsers and some clients accept


class Authority:
    """The certificate authority in a folder, made at first use.

    Args:
        folder: where key and certificate lie; outside every lake.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ca.pem"
        self._both = folder / "ca-key.pem"
        if not self._both.exists():
            made = trustme.CA(organization_name="mirrorlake")
            both = made.private_key_pem.bytes() + made.cert_pem.bytes()
            write_private(self._both, both)  # one file: key and certificate always fit
        data = self._both.read_bytes()
        begin = data.index(b"-----BEGIN CERTIFICATE-----")
        self._ca = trustme.CA.from_pem(data[begin:], data[:begin])
        if not self.path.exists() or self.path.read_bytes() != data[begin:]:
            self.path.unlink(missing_ok=True)
            write_private(self.path, data[begin:])

    def context(self, names: Iterable[str]) -> ssl.SSLContext:
        """What a server needs to speak TLS as these names."""
        until = datetime.now(timezone.utc) + timedelta(days=_DAYS)
        issued = self._ca.issue_cert(*names, organization_name="mirrorlake", not_after=until)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        issued.configure_cert(context)
        return context
