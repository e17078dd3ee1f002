"""The certificates this machine trusts, as a keystore that Java reads.

A packaged JRE brings its own list, which knows nothing of a company's or a proxy's certificate
that the machine's administrator installed. Format: Java's JKS, trusted-certificate entries only.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import ssl
import struct
from collections.abc import Iterable
from pathlib import Path

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2
_PASSWORD = "changeit"  # noqa: S105 - what every Java's list of public certificates has
_WHITENER = b"Mighty Aphrodite"


def machine_certificates() -> list[bytes]:
    """The certificates (DER) that Python's own TLS trusts here, each once."""
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else []
    if not files and paths.capath:
        files = sorted(path for path in Path(paths.capath).glob("*") if path.is_file())
    found: dict[bytes, None] = {}
    for file in files:
        for text in _PEM.findall(file.read_text(errors="ignore")):
            # One damaged certificate must not cost the others.
            with contextlib.suppress(ValueError):
                found[ssl.PEM_cert_to_DER_cert(text)] = None
    return list(found)


def keystore(certificates: Iterable[bytes]) -> bytes:
    """A JKS keystore of trusted certificates (DER)."""
    entries = [
        struct.pack(">I", _TRUSTED) + _text(f"ca{index}") + struct.pack(">Q", 0)
        + _text("X.509") + struct.pack(">I", len(der)) + der
        for index, der in enumerate(certificates)
    ]  # fmt: skip
    body = struct.pack(">III", _MAGIC, _VERSION, len(entries)) + b"".join(entries)
    salt = _PASSWORD.encode("utf-16-be") + _WHITENER
    return body + hashlib.sha1(salt + body).digest()  # noqa: S324 - the format's own checksum


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()
