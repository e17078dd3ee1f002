"""Authentication, path checks, and hostile or broken clients."""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
from pathlib import Path

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.examples import examples
from helpers.places import ZONE
from helpers.serving import Lake, number, parquet, serving, session_of
from mirrorlake.errors import SetupError, UsageError
from mirrorlake_serve import Ready, Workspace, load_token, tokens


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer a.b.c"},
        {"Authorization": "Bearer ä"},
        {"Authorization": "Basic abc"},
        {"Authorization": "SharedKey onelake:abc"},
        {"Authorization": "SharedKey"},
    ],
)
@pytest.mark.parametrize("path", ["", "?sig=wrong", "/v1/workspaces"])
def test_nobody_comes_in_without_the_token(served: Lake, headers: dict, path: str) -> None:
    address = served.ready.rest + path if path.startswith("/v1") else served.url("t") + path
    for method in ("GET", "PUT", "DELETE", "PATCH", "POST"):
        encoded = {name: value.encode() for name, value in headers.items()}
        found = requests.request(
            method, address, headers=encoded, verify=served.ready.ca, timeout=9
        )
        assert found.status_code == 401
        assert "authorization_uri" in found.headers["WWW-Authenticate"]
    assert served.files() == []


def test_an_issued_token_lasts_an_hour() -> None:
    clock = [1000.0]
    issuer = tokens.Tokens("x" * 32, lambda: clock[0])
    issued = issuer.issue("https://storage.azure.com", "https://here/adfs")
    assert issuer.is_valid(issued)
    assert not issuer.is_valid(issued[:-1] + ("A" if issued[-1] != "A" else "B"))
    assert not tokens.Tokens("y" * 32, lambda: clock[0]).is_valid(issued)
    clock[0] += 3601
    assert not issuer.is_valid(issued)
    assert issuer.is_valid("x" * 32)


def test_a_sas_over_http(served: Lake) -> None:
    address = served.url("t/_x", served.ready.http)
    put = requests.put(
        f"{address}?sv=1&sig={served.ready.token}",
        data=b"x",
        headers={"x-ms-blob-type": "BlockBlob"},
        timeout=9,
    )
    assert put.status_code == 201
    assert served.files() == ["t/_x"]


def test_the_token_and_the_authoritys_key_are_private(
    tmp_path: Path, ready: Ready, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("token", "ca-key.pem"):
        mode = (home / "serve" / name).stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
    assert len(bytes.fromhex(ready.token)) * 8 >= 256
    assert load_token(home / "serve") == ready.token
    monkeypatch.setenv("MIRRORLAKE_TOKEN", "short")
    with pytest.raises(UsageError, match="openssl"):
        load_token(tmp_path)
    monkeypatch.setenv("MIRRORLAKE_TOKEN", "a" * 40)
    assert load_token(tmp_path) == "a" * 40


def test_the_log_has_no_token_and_nothing_that_steers(
    served: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    served.put("t/_x", b"x")
    requests.get(f"{served.url('t/_x', served.ready.http)}?sig={served.ready.token}", timeout=9)
    served.session.get(served.url("t/%1b[2J%0a"))
    text = "\n".join(
        record.getMessage() for record in caplog.records if "mirrorlake" in record.name
    )
    assert "PATCH" in text
    assert served.ready.token not in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8443", "localhost.evil.example", ""]
)
def test_the_host_is_checked(served: Lake, host: str) -> None:
    for method in ("GET", "POST"):
        found = served.session.request(method, served.ready.dfs, headers={"Host": host})
        assert found.status_code == 400


@pytest.mark.parametrize(
    "path",
    [
        "../x", "%2e%2e/x", "t/%2e%2e/%2e%2e/%2e%2e/x", "t/..%2f..%2f..%2fx", "t/%252e%252e%252fx",
        "t/a%5cb", "t/..%5c..%5cx", "t/a%00b", "t/a%0ab", "t/%ff", "t/a//b", "t/./b", "%20/x",
        "t/" + "x" * 256, "t/" + "x/" * 600, "t/%ed%a0%80", "bad:name/x", "t/a%2500b",
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["file", "directory", "rename", "blob", "list", "delete"])
def test_no_name_leaves_its_folder(served: Lake, path: str, way: str, tmp_path: Path) -> None:
    served.put("t/_source", b"x")
    before = files_around(served)
    base = served.ready.blob if way == "blob" else served.ready.dfs
    address = f"{base}/{served.name}/{ZONE}/{path}"
    method = {"list": "GET", "delete": "DELETE"}.get(way, "PUT")
    query = {"file": "?resource=file", "directory": "?resource=directory"}.get(way, "")
    headers = {"x-ms-rename-source": f"/{served.name}/{ZONE}/t/_source"} if way == "rename" else {}
    url = f"{address}{query}"
    prepared = served.session.prepare_request(
        requests.Request(method, base, headers=headers, data=b"" if way != "blob" else b"x")
    )
    prepared.url = url  # requests would tidy the dots away
    found = served.session.send(prepared, verify=served.ready.ca)
    assert 400 <= found.status_code < 500, (path, found.status_code)
    assert found.headers["x-ms-error-code"]
    assert files_around(served) == before


def files_around(served: Lake) -> set[str]:
    """Return all files in the folder of the lakes, without the server's uploads."""
    found = set()
    for folder, _, names in os.walk(served.root.parent):
        if "_mirrorlake" not in folder:
            found |= {os.path.join(folder, name) for name in names}
    return found


@pytest.mark.parametrize("name", ["t😀/_x", "täblé/_ü", "t/_a b", "t/_a+b&c=d", "t/_100%", "t/_#?"])
def test_names_of_every_script_are_kept(served: Lake, name: str) -> None:
    assert served.put(name, b"x").status_code == 200
    assert served.call("GET", name).content == b"x"
    folder = name.partition("/")[0]
    listed = served.call("GET", folder, "resource=filesystem&recursive=true").json()["paths"]
    assert [p["name"].partition(f"{ZONE}/")[2] for p in listed] == [name]
    assert (served.root / ZONE / name).read_bytes() == b"x"


def test_a_body_that_is_too_large_is_refused_before_it_comes(served: Lake) -> None:
    served.call("PUT", "t/_x", "resource=file")
    headers = {"Content-Length": str(6 << 30), "Connection": "close"}
    with socket.create_connection(("127.0.0.1", int(served.ready.http.rpartition(":")[2]))) as line:
        path = f"/{served.name}/{ZONE}/t/_x?action=append&position=0"
        fields = headers | {"Host": "localhost", "Authorization": f"Bearer {served.ready.token}"}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        line.sendall(f"PATCH {path} HTTP/1.1\r\n{head}\r\n".encode())
        assert b"413" in line.recv(2000).split(b"\r\n")[0]


def test_slow_clients_do_not_stop_the_rest(served: Lake) -> None:
    port = int(served.ready.http.rpartition(":")[2])
    lines = []
    try:
        for n in range(200):
            line = socket.create_connection(("127.0.0.1", port))
            lines.append(line)
            head = f"PUT /{served.name}/{ZONE}/slow/_{n} HTTP/1.1\r\nHost: localhost\r\n"
            head += f"Authorization: Bearer {served.ready.token}\r\nx-ms-blob-type: BlockBlob\r\n"
            line.sendall((head + "Content-Length: 1000\r\n\r\nfew").encode())
        done: list[int] = []
        thread = threading.Thread(target=lambda: done.append(served.put("t/_x", b"x").status_code))
        thread.start()
        thread.join(20)
        assert done == [200]
        assert served.files() == ["t/_x"]
    finally:
        for line in lines:
            line.close()


def test_a_client_that_leaves_in_the_middle_leaves_nothing(served: Lake) -> None:
    port = int(served.ready.http.rpartition(":")[2])
    for path in (f"t/{number(1)}", "t/_x"):
        with socket.create_connection(("127.0.0.1", port)) as line:
            head = f"PUT /{served.name}/{ZONE}/{path} HTTP/1.1\r\nHost: localhost\r\n"
            head += f"Authorization: Bearer {served.ready.token}\r\nx-ms-blob-type: BlockBlob\r\n"
            line.sendall((head + "Content-Length: 9000\r\n\r\n").encode() + parquet(id=[1]))
    assert served.put("t/_y", b"y").status_code == 200
    assert served.files() == ["t/_y"]


def test_a_server_that_only_reads_changes_nothing(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "lake"
    (root / ZONE / "t").mkdir(parents=True)
    (root / ZONE / "t" / "_x").write_bytes(b"x")
    before = sorted(tmp_path.rglob("*"))
    workspace = Workspace(str(root), read_only=True)
    with serving(workspace) as ready, session_of(ready) as session:
        lake = Lake(ready, workspace.items[0], session)
        assert lake.call("GET", "t/_x").content == b"x"
        for method in ("PUT", "PATCH", "DELETE", "POST"):
            assert lake.call(method, "t/_x", "resource=file").status_code == 403
        status = f"{ready.rest}/v1/workspaces/{ready.workspace}/mirroredDatabases/{ready.item}"
        assert session.post(f"{status}/getMirroringStatus").status_code == 200
        assert session.post(f"{status}/startMirroring").status_code == 403
    assert sorted(tmp_path.rglob("*")) == before


def test_a_port_that_is_taken_is_said(tmp_path: Path, home: Path, ready: Ready) -> None:
    port = int(ready.http.rpartition(":")[2])
    with (
        pytest.raises(AssertionError, match="can't be opened") as failed,
        serving(Workspace(str(tmp_path / "lake")), port=port),
    ):
        pass
    assert SetupError.__name__ in str(failed.value)


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
PARTS = st.sampled_from(
    [
        "t",
        "_x",
        "..",
        ".",
        "%2e%2e",
        "",
        number(1),
        "_metadata.json",
        "a.schema",
        "\u0000",
        "😀",
        "%",
    ]
)
KEYS = st.sampled_from(
    ["resource", "action", "position", "comp", "restype", "directory", "recursive", "blockid",
     "flush", "continuation", "marker", "maxResults", "prefix", "delimiter", "close", "sig", "type"]
)  # fmt: skip
VALUES = st.sampled_from(
    ["file", "directory", "filesystem", "append", "flush", "0", "3", "-1", "block", "blocklist",
     "list", "container", "batch", "lease", "true", "..", "a/../b", "QQ==", "é", "", "9" * 30]
)  # fmt: skip
HEADERS = st.sampled_from(
    ["x-ms-rename-source", "x-ms-copy-source", "Range", "x-ms-range", "If-Match", "If-None-Match",
     "If-Modified-Since", "x-ms-blob-type", "x-ms-lease-action", "Content-Type", "x-ms-version"]
)  # fmt: skip
HEADER_VALUES = st.one_of(
    st.sampled_from(
        [
            "*",
            "bytes=0-",
            "bytes=9-1",
            "bytes=--",
            "/ws/../x",
            "https://[",
            "BlockBlob",
            "acquire",
            "Mon, 99 Foo 2020",
            "multipart/mixed; boundary=a",
            '"0x1"',
            "PageBlob",
        ]
    ),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20),
)
BODIES = st.sampled_from(
    [
        *(b"", b"abc", b"{}", b"[", b"<a", b"<!DOCTYPE a><a/>"),
        b"<BlockList><Latest>QQ==</Latest></BlockList>",
        b"--a\r\n\r\nDELETE /x HTTP/1.1\r\n\r\n--a--",
        parquet(id=[1]),
    ]
)


@settings(examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "PATCH", "POST", "DELETE", "OPTIONS", "MERGE"]),
    prefix=st.sampled_from(["lake", "zone", "zone", "zone", "root", "workspace", "rest", "oauth"]),
    parts=st.lists(st.one_of(PARTS, TEXT), max_size=4),
    query=st.lists(st.tuples(st.one_of(KEYS, TEXT), st.one_of(VALUES, TEXT)), max_size=4),
    headers=st.dictionaries(HEADERS, HEADER_VALUES, max_size=3),
    body=BODIES,
    blob=st.booleans(),
)
def test_no_request_breaks_the_server_or_writes_outside_the_zone(
    served: Lake, method, prefix, parts, query, headers, body, blob
) -> None:
    ready = served.ready
    base = ready.http if not blob else ready.blob
    start = {
        "lake": f"/{served.name}",
        "zone": f"/{served.name}/{ZONE}",
        "root": "",
        "workspace": f"/{ready.workspace}",
        "rest": f"/v1/workspaces/{ready.workspace}/mirroredDatabases",
        "oauth": "/adfs/oauth2/v2.0/token",
    }[prefix]
    path = requests.utils.quote("/".join(["", *parts]), safe="/%") if parts else ""
    text = "&".join(
        f"{requests.utils.quote(k, safe='')}={requests.utils.quote(v, safe='')}" for k, v in query
    )
    made = {name: value.encode() for name, value in headers.items()}
    prepared = served.session.prepare_request(
        requests.Request(method, base, headers=made, data=body)
    )
    prepared.url = f"{base}{start}{path}" + (f"?{text}" if text else "")
    found = served.session.send(prepared, verify=ready.ca, timeout=30, allow_redirects=False)
    assert found.status_code < 500, (found.status_code, found.text)
    if found.status_code >= 400:
        code = found.headers.get("x-ms-error-code")
        assert code, (found.status_code, found.text)
        assert method == "HEAD" or found.status_code == 304 or code in found.text
    inside = {str(served.root / ZONE), str(served.root / "Files" / "_mirrorlake")}
    for folder, _, names in os.walk(served.root):
        if names:
            assert any(folder.startswith(one) for one in inside), (folder, names)
