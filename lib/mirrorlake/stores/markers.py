"""Folder markers: the empty objects whose names end with `/` that Hadoop's S3A leaves of folders.

Obstore lists them without their last `/`, and can't name them otherwise; Arrow's own S3 client can.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mirrorlake.stores.opening import s3_endpoint, scheme_of

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

_log = logging.getLogger(__name__)


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
