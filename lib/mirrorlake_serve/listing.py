"""Pages of listings: which entries come next, in an order that a token can name."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass

from mirrorlake.errors import MirrorlakeError
from mirrorlake_serve.errors import bad_request, not_found
from mirrorlake_serve.files import Info, LakeFiles
from mirrorlake_serve.paths import readable


@dataclass(frozen=True)
class Page:
    """Some entries of a listing.

    Attributes:
        after: where the next page begins; "" if there is none.
    """

    entries: list[Info]
    after: str = ""


def page_of(
    files: LakeFiles, parts: tuple[str, ...], recursive: bool, most: int, token: str | None
) -> Page:
    """A page of what lies in a folder, folders before what is in them.

    Args:
        files: the lake's.
        parts: the folder's path.
        recursive: whether the folders in it are listed, too.
        most: how many entries at most.
        token: the earlier page's `after`.

    Raises:
        RequestError: there is no such folder, or the token is not one of ours.
    """
    path = readable(parts)
    info = files.stat(path)
    if path and info is None and path not in ("Files", "Files/LandingZone", "Tables"):
        raise not_found()
    if info is not None and not info.is_folder:
        return Page([info])
    last = tuple(decode_token(token).split("/")) if token else ()
    found: list[Info] = []
    for one in visible(files, path, recursive=recursive):
        if tuple(one.path.split("/")) <= last:
            continue
        if len(found) == most:
            return Page(found, encode_token(found[-1].path))
        found.append(one)
    return Page(found)


def visible(files: LakeFiles, path: str, *, recursive: bool) -> Iterator[Info]:
    """What lies in a folder and is served."""
    for info in files.children(path):
        try:
            readable(tuple(info.path.split("/")))
        except MirrorlakeError:
            continue
        yield info
        if recursive and info.is_folder:
            yield from visible(files, info.path, recursive=True)


def encode_token(name: str) -> str:
    """A token that names the last entry of a page."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def decode_token(token: str) -> str:
    """The name in a token.

    Raises:
        RequestError: there is none.
    """
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise bad_request("InvalidQueryParameterValue", "The continuation is not ours.") from None
