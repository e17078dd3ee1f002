"""Listings of the blob dialect as XML, and the containers and accounts above them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from email.utils import format_datetime

from starlette.responses import Response

from mirrorlake_serve.call import whole_number
from mirrorlake_serve.errors import xml_text
from mirrorlake_serve.files import Info, decode_token, encode_token, visible
from mirrorlake_serve.lakes import Item, Workspace
from mirrorlake_serve.paths import split

_HEAD = '<?xml version="1.0" encoding="utf-8"?>'


def list_blobs(workspace: Workspace, query: Mapping[str, str]) -> Response:
    """A page of the blobs of a workspace, by prefix; with a delimiter the folders at one level.

    Raises:
        RequestError: a parameter makes no sense.
    """
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    most = min(whole_number(query.get("maxresults") or "5000", "maxresults") or 5000, 5000)
    token = query.get("marker", "")
    after = decode_token(token) if token else ""
    first = query.get("startfrom", "")
    names: dict[str, Info | None] = {}
    for name, info in _matching(workspace, prefix, flat=not delimiter):
        names[name] = info
    page: list[str] = []
    following = ""
    for name in sorted(names):
        if (after and name <= after) or name < first:
            continue
        if len(page) == most:
            following = encode_token(page[-1])
            break
        page.append(name)
    body = "".join(_blob(name, names[name]) for name in page)
    asked = f"<Prefix>{xml_text(prefix)}</Prefix><MaxResults>{most}</MaxResults>"
    if delimiter:
        asked += f"<Delimiter>{xml_text(delimiter)}</Delimiter>"
    text = (
        f'{_HEAD}<EnumerationResults ContainerName="{workspace.id}">{asked}'
        f"<Blobs>{body}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
    )
    return Response(text, 200, media_type="application/xml")


def _matching(
    workspace: Workspace, prefix: str, *, flat: bool
) -> Iterator[tuple[str, Info | None]]:
    """Names and properties of what begins with a prefix; a folder's name ends with `/`."""
    parts = split(prefix)
    item = workspace.find(parts[0]) if parts else None
    if item is not None and (len(parts) > 1 or prefix.endswith("/")):
        yield from _of_item(item, parts[0], prefix, flat=flat)
        return
    for one in workspace.items:
        for name in (one.id, f"{one.name}.MountedRelationalDatabase"):
            if parts and name.startswith(prefix):
                if flat:
                    yield from _of_item(one, name, f"{name}/", flat=True)
                else:
                    yield f"{name}/", None
        if not parts:
            if flat:
                yield from _of_item(one, one.id, f"{one.id}/", flat=True)
            else:
                yield f"{one.id}/", None


def _of_item(
    item: Item, text: str, prefix: str, *, flat: bool
) -> Iterator[tuple[str, Info | None]]:
    folder = prefix.rpartition("/")[0][len(text) :].strip("/")
    base = "/".join(split(folder))
    for info in visible(item.zone.files, base, recursive=flat):
        name = f"{text}/{info.path}"
        if not name.startswith(prefix):
            continue
        if not info.is_folder:
            yield name, info
        elif not flat:
            yield f"{name}/", None


def _blob(name: str, info: Info | None) -> str:
    if info is None:
        return f"<BlobPrefix><Name>{xml_text(name)}</Name></BlobPrefix>"
    when = format_datetime(info.modified, usegmt=True)
    return (
        f"<Blob><Name>{xml_text(name)}</Name><Properties>"
        f"<Creation-Time>{when}</Creation-Time><Last-Modified>{when}</Last-Modified>"
        f"<Etag>{info.etag.strip(chr(34))}</Etag><ResourceType>file</ResourceType>"
        f"<Content-Length>{info.size}</Content-Length>"
        "<Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType>"
        "<LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState>"
        "</Properties></Blob>"
    )


def list_containers(workspace: Workspace, query: Mapping[str, str]) -> Response:
    """The workspaces of the account: this one."""
    text = "".join(
        f"<Container><Name>{xml_text(name)}</Name><Properties>"
        "<Last-Modified>Wed, 01 Jan 2020 00:00:00 GMT</Last-Modified><Etag>0x0</Etag>"
        "<LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState>"
        "</Properties></Container>"
        for name in (workspace.id,)
        if name.startswith(query.get("prefix", ""))
    )
    body = (
        f"{_HEAD}<EnumerationResults><Containers>{text}</Containers><NextMarker/>"
        "</EnumerationResults>"
    )
    return Response(body, 200, media_type="application/xml")
