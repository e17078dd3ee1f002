"""Details of the protocol on which a client of another server has failed, one per test."""

from __future__ import annotations

import json
import socket
import ssl
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlsplit

import pytest

from helpers.places import ZONE
from helpers.serving import Lake, number, parquet

BODY = parquet(id=[1, 2])
BLOB_AGENT = {"User-Agent": "azsdk-python-storage-blob/12.31.1 Python/3.11"}


def test_the_etag_stays_from_the_put_to_the_flush(served: Lake) -> None:
    made = served.call("PUT", "t/" + number(1), "resource=file")
    served.call("PATCH", "t/" + number(1), "action=append&position=0", data=BODY)
    flush = f"action=flush&position={len(BODY)}&close=true"
    wrong = served.call("PATCH", "t/" + number(1), flush, headers={"If-Match": '"0x1"'})
    assert (wrong.status_code, wrong.headers["x-ms-error-code"]) == (412, "ConditionNotMet")
    right = {"If-Match": made.headers["ETag"]}
    assert served.call("PATCH", "t/" + number(1), flush, headers=right).status_code == 200


@pytest.mark.parametrize(
    "source",
    [
        "/{name}/{path}",
        "/{name}/{path}?sig=abc&sv=1",
        "{base}/{name}/{path}",
        "{base}/{name}/{path}?resource=file",
        "/{name}/{encoded}",
        "{base}/{name}/{encoded}",
        "/onelake/{name}/{path}",
    ],
)
def test_a_rename_source_comes_in_every_form(served: Lake, source: str) -> None:
    assert served.put("t/_ä 1.parquet_TEMP", BODY).status_code == 200
    path = f"{ZONE}/t/{quote('_ä 1.parquet_TEMP')}"
    encoded = quote(f"{ZONE}/t/_ä 1.parquet_TEMP", safe="")
    text = source.format(name=served.name, path=path, encoded=encoded, base=served.ready.dfs)
    done = served.call("PUT", "t/" + number(1), headers={"x-ms-rename-source": text})
    assert done.status_code == 201, done.text
    assert served.files("t") == [number(1)]


@pytest.mark.parametrize("path", ["nothing", "t/nothing.parquet"])
@pytest.mark.parametrize("agent", [{}, BLOB_AGENT], ids=["dfs", "blob"])
def test_a_failed_head_has_no_type_and_no_body(served: Lake, path: str, agent: dict) -> None:
    found = served.call("HEAD", path, headers=agent)
    assert (found.status_code, found.headers["x-ms-error-code"]) == (404, "PathNotFound")
    assert "content-type" not in found.headers
    assert found.content == b""


def test_a_lease_that_is_broken_says_when(served: Lake) -> None:
    served.put("t/_x", b"x")
    acquire = {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "15"}
    taken = served.call("PUT", "t/_x", "comp=lease", headers=acquire)
    assert taken.status_code == 201
    lease = {"x-ms-lease-id": taken.headers["x-ms-lease-id"]}
    for action, status in (("renew", 200), ("release", 200), ("break", 202)):
        done = served.call(
            "PUT", "t/_x", "comp=lease", headers=lease | {"x-ms-lease-action": action}
        )
        assert done.status_code == status
    assert done.headers["x-ms-lease-time"] == "0"


def test_delete_is_200_for_dfs_and_202_for_blob(served: Lake) -> None:
    for name in "abcd":
        served.put(f"t/_{name}", b"x")
    assert served.call("DELETE", "t/_a").status_code == 200
    assert served.call("DELETE", "t/_b", headers=BLOB_AGENT).status_code == 202
    assert served.call("DELETE", "t/_c", base=served.ready.blob).status_code == 202
    assert (
        served.call("DELETE", "t/_d", headers={"User-Agent": "Azure.Storage.Blobs/12"}).status_code
        == 202
    )
    served.call("PUT", "u", "resource=directory")
    assert served.call("DELETE", "u", "recursive=true&paginated=true").status_code == 200


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_folder_is_one_in_both_dialects(served: Lake, method: str) -> None:
    served.call("PUT", "t", "resource=directory")
    for base in (served.ready.dfs, served.ready.blob):
        found = served.call(method, "t", base=base)
        assert found.status_code == 200
        assert found.headers["x-ms-meta-hdi_isfolder"] == "true"
        assert found.headers["x-ms-resource-type"] == "directory"


def listed(served: Lake, path: str, query: str) -> list[dict[str, str]]:
    address = f"{served.ready.dfs}/{path}?resource=filesystem&{query}"
    found = served.session.get(address)
    assert found.status_code == 200, found.text
    assert "\n" not in found.text.strip()  # one client reads a line a document
    return list(json.loads(found.text)["paths"])


def test_listings_are_texts_and_named_from_the_workspace_on(served: Lake) -> None:
    served.put("t/" + number(1), BODY)
    item, zone = served.item.id, f"{served.item.id}/{ZONE}"
    ways = (
        (f"{served.name}/{ZONE}/t", "recursive=false"),
        (served.ready.workspace, f"recursive=true&directory={quote(f'{zone}/t', safe='')}"),
        (served.name, f"recursive=false&directory={ZONE}/t"),
    )
    for path, query in ways:
        (entry,) = listed(served, path, query)
        assert entry["name"] == f"{zone}/t/{number(1)}"
        assert entry["contentLength"] == str(len(BODY))
        assert "isDirectory" not in entry
        assert parsedate_to_datetime(entry["lastModified"])
    (folder,) = listed(served, served.ready.workspace, f"recursive=false&directory={zone}")
    assert (folder["name"], folder["isDirectory"]) == (f"{zone}/t", "true")
    assert {e["name"] for e in listed(served, served.name, "recursive=false")} == {f"{item}/Files"}


def test_ranges_are_parts_whatever_header_asks(served: Lake) -> None:
    served.put("t/_x", b"0123456789")
    for header in ("x-ms-range", "Range"):
        found = served.call("GET", "t/_x", headers={header: "bytes=0-33554431"})
        assert (found.status_code, found.content) == (206, b"0123456789")
        assert found.headers["Content-Range"] == "bytes 0-9/10"
        assert served.call("GET", "t/_x", headers={header: "bytes=-3"}).content == b"789"
        assert served.call("GET", "t/_x", headers={header: "bytes=4-5"}).content == b"45"
        late = served.call("GET", "t/_x", headers={header: "bytes=10-"})
        assert (late.status_code, late.headers["x-ms-error-code"]) == (416, "InvalidRange")
    served.call("PUT", "t/_empty", headers={"x-ms-blob-type": "BlockBlob"}, base=served.ready.blob)
    empty = served.call("GET", "t/_empty", headers={"x-ms-range": "bytes=0-1"})
    assert (empty.status_code, empty.headers["x-ms-error-code"]) == (416, "InvalidRange")
    assert served.call("GET", "t/_empty").content == b""


@pytest.mark.parametrize("version", [None, "2020-02-10", "2031-01-01", "odd value\t"])
def test_any_version_is_taken_and_told_again(served: Lake, version: str | None) -> None:
    headers = {"content-type": "application/json"} | ({"x-ms-version": version} if version else {})
    served.call("PUT", "t/_x", "resource=file", headers=headers)
    made = served.call(
        "PATCH", "t/_x", "action=append&position=0&flush=true", headers=headers, data=b"x"
    )
    assert made.status_code == 202
    assert made.headers["x-ms-version"] == (
        version if version and " " not in version else "2026-06-06"
    )


def test_a_client_that_waits_for_100_is_told_to_go_on(served: Lake) -> None:
    url = urlsplit(served.url("t/_x", served.ready.blob))
    context = ssl.create_default_context(cafile=served.ready.ca)
    with (
        socket.create_connection((url.hostname, url.port), 10) as plain,
        context.wrap_socket(plain, server_hostname=url.hostname) as line,
    ):
        head = f"PUT {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nExpect: 100-continue\r\n"
        head += f"Authorization: Bearer {served.ready.token}\r\nContent-Length: 3\r\n"
        line.sendall((head + "x-ms-blob-type: BlockBlob\r\n\r\n").encode())
        assert line.recv(1000).startswith(b"HTTP/1.1 100")
        line.sendall(b"abc")
        assert line.recv(1000).startswith(b"HTTP/1.1 201")
    assert served.call("GET", "t/_x").content == b"abc"


def test_the_account_may_stand_before_the_workspace(served: Lake) -> None:
    served.put("t/_x", b"x")
    for account in ("", "onelake/", "devstoreaccount1/"):
        address = f"{served.ready.http}/{account}{served.name}/{ZONE}/t/_x"
        assert served.session.get(address).content == b"x"


@pytest.mark.parametrize(
    ("method", "path", "query", "status", "code"),
    [
        ("GET", "nothing", "", 404, "PathNotFound"),
        ("PATCH", "t/_x", "action=append&position=0", 404, "PathNotFound"),
        ("DELETE", "t", "", 409, "DirectoryNotEmpty"),
        ("PATCH", "t/_there", "action=flush&position=9", 400, "InvalidFlushPosition"),
        ("PATCH", "t/_there", "action=flush", 400, "MissingRequiredQueryParameter"),
        ("PATCH", "t/_there", "action=flush&position=-1", 400, "InvalidQueryParameterValue"),
        ("PATCH", "t/_there", "action=setAccessControl", 400, "OperationNotSupported"),
        ("PUT", "t/_there/x", "resource=directory", 409, "PathConflict"),
        ("MERGE", "t/_there", "", 405, "UnsupportedHttpVerb"),
    ],
)
def test_errors_have_the_protocols_codes_in_header_and_body(
    served: Lake, method: str, path: str, query: str, status: int, code: str
) -> None:
    served.put("t/_there", b"x")
    found = served.call(method, path, query)
    assert (found.status_code, found.headers["x-ms-error-code"]) == (status, code), found.text
    assert found.json()["error"]["code"] == code
    if method == "GET":
        blob = served.call(method, path, query, base=served.ready.blob)
        assert blob.headers["x-ms-error-code"] == code
        assert f"<Code>{code}</Code>" in blob.text


def test_a_rename_of_nothing_is_a_missing_source(served: Lake) -> None:
    done = served.rename("t/_gone", "t/" + number(1))
    assert (done.status_code, done.headers["x-ms-error-code"]) == (404, "SourcePathNotFound")


def test_hadoop_asks_for_the_access_control_of_the_file_system(served: Lake) -> None:
    found = served.session.head(
        f"{served.ready.dfs}/{served.ready.workspace}/?action=getAccessControl"
    )
    assert found.status_code == 200
    assert found.headers["x-ms-owner"] == "$superuser"
    container = served.session.head(
        f"{served.ready.dfs}/{served.ready.workspace}?resource=filesystem"
    )
    assert container.headers["x-ms-namespace-enabled"] == "true"


def test_framed_bodies_are_refused_not_stored(served: Lake) -> None:
    served.call("PUT", "t/_x", "resource=file")
    framed = {"x-ms-structured-body": "XSM/1.0; properties=crc64"}
    done = served.call("PATCH", "t/_x", "action=append&position=0", headers=framed, data=b"x")
    assert (done.status_code, done.headers["x-ms-error-code"]) == (400, "UnsupportedHeader")


def test_a_file_is_made_in_place_of_another_unless_asked_not_to(served: Lake) -> None:
    assert served.put("t/_x", b"one").status_code == 200
    assert served.put("t/_x", b"two").status_code == 200
    refused = served.call("PUT", "t/_x", "resource=file", headers={"If-None-Match": "*"})
    assert (refused.status_code, refused.headers["x-ms-error-code"]) == (409, "PathAlreadyExists")
    assert served.call("GET", "t/_x").content == b"two"


def test_owners_are_ignored_and_said_to_be(served: Lake) -> None:
    done = served.call("PUT", "t", "resource=directory", headers={"x-ms-owner": "me"})
    assert done.headers["x-ms-rejected-headers"] == "x-ms-owner"
