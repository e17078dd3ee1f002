"""Opens an object store by its URI, with the settings of the standard variables.

`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID` and their like are read by obstore itself; here stands what
it would refuse, or do in a way that loses certainty, without being told. Arrow's client is opened
for one thing that obstore can't name: the empty objects, whose names end with `/`, that Hadoop's
S3A leaves of folders. Obstore lists them without their last `/`.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.store import from_url

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

_log = logging.getLogger(__name__)
CLOUDS = ("s3", "s3a", "az", "abfs", "abfss", "adl", "azure", "gs")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_NO_RETRY: Any = {"max_retries": 0}
# A store that is down is an error within this time, not after obstore's three minutes.
_RETRY: Any = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=40),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5)},
}
# The standard variables of each kind of store begin with these.
_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_"}


def one_uri(uri: str) -> str:
    """The one way to name a place: Hadoop's `s3a://` is `s3://`, and no slash is at the end."""
    scheme, mark, place = uri.partition("://")
    return ("s3" if scheme.lower() == "s3a" else scheme) + mark + place.rstrip("/")


def store_variables(uri: str) -> dict[str, str]:
    """This process's variables that lead to a store, its keys among them: they go into no log.

    Args:
        uri: the store's; none lead to what is not in a cloud.
    """
    scheme = scheme_of(one_uri(uri))
    if scheme not in CLOUDS:
        return {}
    prefix = _PREFIXES.get(scheme, "AZURE_")
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


def scheme_of(uri: str) -> str:
    """The scheme of a URI, in lower case."""
    return urlsplit(uri).scheme.lower()


def s3_endpoint() -> str | None:
    """The address of an S3 server other than Amazon's, by the standard variables."""
    return next((found for name in ENDPOINTS if (found := os.environ.get(name))), None)


def open_store(uri: str, *, retried: bool = True) -> Any:
    """The store behind a URI.

    Args:
        uri: such as `s3://bucket/lake`.
        retried: obstore repeats a request whose answer was an error or lost. A repeated request
            can be refused on account of the first, so some callers repeat on their own.
    """
    uri = one_uri(uri)
    scheme = scheme_of(uri)
    if scheme not in CLOUDS:
        return from_url(uri, client_options={"allow_http": scheme == "http"})
    options: dict[str, Any] = {"retry_config": _RETRY if retried else _NO_RETRY}
    if scheme == "s3":
        if "AWS_COPY_IF_NOT_EXISTS" not in os.environ:
            # Without it obstore refuses every rename that must not overwrite.
            options["copy_if_not_exists"] = "multipart"
        if endpoint := s3_endpoint():
            options["endpoint"] = endpoint
            if endpoint.lower().startswith("http://"):
                options["client_options"] = {"allow_http": True}
    return from_url(uri, **options)


def remove_markers(uri: str) -> None:
    """Removes what is left of a folder that has no files any more, its markers and those below.

    A marker that stays is harmless to this package; Spark takes one of a log for a table's.

    Args:
        uri: the folder, in full; nothing happens where it is not of S3.
    """
    if scheme_of(uri) not in ("s3", "s3a"):
        return
    place = urlsplit(uri)
    try:
        with suppress(FileNotFoundError):
            arrow_s3().delete_dir(f"{place.netloc}{place.path}")
    except OSError as error:
        _log.warning("the folder markers below %s stay: %s", uri, error)


def arrow_s3() -> S3FileSystem:
    """Arrow's client of the store that the standard variables name; a bucket is part of a path."""
    from pyarrow.fs import S3FileSystem

    endpoint = s3_endpoint()
    if endpoint is None:
        return S3FileSystem()
    parts = urlsplit(endpoint)
    return S3FileSystem(endpoint_override=parts.netloc, scheme=parts.scheme)
