"""The control plane, the proxy for hard-coded names, and the command `serve`."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import requests

from helpers.examples import under_long
from helpers.places import ZONE
from helpers.ports import free_port
from helpers.project import PROJECT
from helpers.serving import Lake, number, parquet, serving, session_of
from mirrorlake import Lake as PublicLake
from mirrorlake.errors import MirrorlakeError
from mirrorlake_serve import DEFINITION, Mirrors, Ready, Workspace, account_key

DEADLINE = 60


class RecordingMirrors(Mirrors):
    """Mirrors that only remember the requests; other tests start Spark."""

    def __init__(self) -> None:
        super().__init__(allowed=False)
        self.running: set[str] = set()

    def start(self, storage: Any) -> None:
        self.running.add(storage.root)

    def stop(self, storage: Any) -> None:
        self.running.discard(storage.root)

    def status(self, storage: Any) -> tuple[str, str]:
        return ("Running" if storage.root in self.running else "Stopped"), ""


@pytest.fixture(scope="module")
def mirrors() -> RecordingMirrors:
    return RecordingMirrors()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lakes")


@pytest.fixture(scope="module")
def rest(
    place: Path, home: Path, mirrors: RecordingMirrors
) -> Iterator[tuple[Ready, requests.Session]]:
    with (
        serving(Workspace(folder=str(place)), mirrors) as ready,
        session_of(ready) as session,
    ):
        yield ready, session


def definition(document: Any = DEFINITION) -> dict[str, Any]:
    payload = base64.b64encode(json.dumps(document).encode()).decode()
    part = {"path": "mirroring.json", "payload": payload, "payloadType": "InlineBase64"}
    return {"parts": [part]}


def test_a_mirrored_database_from_its_making_to_its_end(
    rest: tuple[Ready, requests.Session], place: Path, mirrors: RecordingMirrors
) -> None:
    ready, session = rest
    (workspace,) = session.get(f"{ready.rest}/v1/workspaces").json()["value"]
    assert workspace["id"] == ready.workspace
    base = f"{ready.rest}/v1/workspaces/{ready.workspace}/mirroredDatabases"
    made = session.post(
        base, json={"displayName": "sales", "description": "d", "definition": definition()}
    )
    assert made.status_code == 201, made.text
    item = made.json()
    assert (item["displayName"], item["type"], item["workspaceId"]) == (
        "sales", "MirroredDatabase", ready.workspace,
    )  # fmt: skip
    assert item["properties"]["defaultSchema"] == "dbo"
    assert item["properties"]["oneLakeTablesPath"].endswith("/Tables")
    one = f"{base}/{item['id']}"
    assert session.get(one).json() == item
    assert item in session.get(base).json()["value"]
    listed = f"{ready.rest}/v1/workspaces/{ready.workspace}/items?type=MirroredDatabase"
    assert item in session.get(listed).json()["value"]
    again = session.post(base, json={"displayName": "sales"})
    assert (again.status_code, again.json()["errorCode"]) == (409, "ItemDisplayNameAlreadyInUse")

    part = session.post(f"{one}/getDefinition").json()["definition"]["parts"][0]
    assert json.loads(base64.b64decode(part["payload"])) == DEFINITION
    assert session.post(f"{one}/updateDefinition", json={"definition": definition()}).ok
    changed = session.patch(one, json={"description": "other"}).json()
    assert changed == item | {"description": "other"}

    status = f"{one}/getMirroringStatus"
    assert session.post(status).json() == {"status": "Stopped"}
    assert session.post(f"{one}/startMirroring").status_code == 200
    assert session.post(status).json() == {"status": "Running"}
    assert mirrors.running == {str(place / "sales")}
    assert session.post(f"{one}/stopMirroring").status_code == 200
    assert session.post(status).json() == {"status": "Stopped"}

    # Files stay, and the lake can be registered again; then they go, since this server made it.
    zone = place / "sales" / ZONE
    (zone / "t").mkdir()
    assert session.delete(one).status_code == 200
    assert session.get(one).json()["errorCode"] == "ItemNotFound"
    assert Workspace(folder=str(place)).find("sales") is None
    assert (zone / "t").is_dir()
    item = session.post(base, json={"displayName": "sales"}).json()
    assert session.delete(f"{base}/{item['id']}?hardDelete=true").status_code == 200
    assert not zone.exists()


def test_a_lake_that_others_made_is_never_deleted(home: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs" / ZONE / "t").mkdir(parents=True)
    with serving(Workspace(folder=str(tmp_path))) as ready, session_of(ready) as session:
        base = f"{ready.rest}/v1/workspaces/{ready.workspace}/mirroredDatabases"
        assert session.delete(f"{base}/theirs?hardDelete=true").status_code == 200
    assert (tmp_path / "theirs" / ZONE / "t").is_dir()


def test_status_of_tables_in_the_words_of_the_interface(
    rest: tuple[Ready, requests.Session], place: Path
) -> None:
    ready, session = rest
    base = f"{ready.rest}/v1/workspaces/{ready.workspace}/mirroredDatabases"
    item = session.post(base, json={"displayName": "told"}).json()
    for folder in ("s.schema/t", "u"):
        (place / "told" / ZONE / folder).mkdir(parents=True)
    error = {"message": "m", "file": "f", "row": 3, "column": None}
    state = {"schema": "s", "name": "t", "state": "Failed", "rows": 5, "bytes": 6}
    state |= {"synced": "2026-01-01", "error": error}
    kept = {"format": 2, "tables": {f"{ZONE}/s.schema/t": state}}
    PublicLake(place / "told").storage.write_json("Files/_mirrorlake/state.json", kept)
    first, second = session.post(f"{base}/{item['id']}/getTablesMirroringStatus").json()["data"]
    assert first == {
        "sourceObjectType": "Table",
        "sourceSchemaName": "s",
        "sourceTableName": "t",
        "status": "Failed",
        "metrics": {
            "processedBytes": 6,
            "processedRows": 5,
            "lastSyncDateTime": "2026-01-01",
            "lastSyncLatencyInSeconds": None,
        },
        "error": {"errorCode": "TableFailed", **error},
    }
    assert (second["sourceSchemaName"], second["status"]) == ("", "Initialized")
    assert "error" not in second


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "", {}, 400, "InvalidParameter"),
        ("POST", "", {"displayName": 7}, 400, "InvalidParameter"),
        ("POST", "", {"displayName": "../up"}, 400, "InvalidItemName"),
        ("POST", "", {"displayName": "_hidden"}, 400, "InvalidItemName"),
        ("POST", "", [], 400, "InvalidRequest"),
        ("POST", "", {"displayName": "x", "definition": 1}, 400, "InvalidDefinitionParts"),
        (
            "POST", "", {"displayName": "x", "definition": {"parts": []}},
            400, "InvalidDefinitionParts",
        ),
        (
            "POST", "", {"displayName": "x", "definition": definition({"properties": {}})},
            400, "InvalidDefinitionFormat",
        ),
        (
            "POST", "",
            {"displayName": "x", "definition": definition(
                {"properties": {"source": {"type": "Snowflake"}, "target": {}}})},
            400, "UnsupportedSourceType",
        ),
        ("PUT", "", {}, 405, "UnsupportedHttpVerb"),
        ("GET", "/nothing", None, 404, "ItemNotFound"),
        ("GET", "/bare/what", None, 404, "EndpointNotFound"),
        ("POST", "/bare/startMirroring", None, 400, "MirroringDefinitionMissing"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_has_a_code(
    rest: tuple[Ready, requests.Session], method: str, path: str, body: Any, status: int, code: str
) -> None:
    ready, session = rest
    base = f"{ready.rest}/v1/workspaces/{ready.workspace}/mirroredDatabases"
    session.post(base, json={"displayName": "bare"})
    found = session.request(method, base + path, json=body)
    assert (found.status_code, found.json()["errorCode"]) == (status, code), found.text
    assert found.headers["x-ms-error-code"] == code
    assert found.json()["message"]


def test_without_mirrors_starting_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MirrorlakeError, match="--mirror"):
        Mirrors(allowed=False).start(PublicLake(tmp_path).storage)


def test_one_lake_is_found_by_guid_and_names_and_stays_the_same(tmp_path: Path) -> None:
    first, second = (Workspace(str(tmp_path / "shop")) for _ in range(2))
    assert (first.id, first.items[0].id) == (second.id, second.items[0].id)
    for text in (first.items[0].id.upper(), "Shop", "shop.MountedRelationalDatabase"):
        assert first.find(text) is first.items[0]
    assert first.find("other") is None
    assert not (tmp_path / "shop" / "Files").exists()


@pytest.mark.parametrize(
    "name", ["onelake.dfs.fabric.microsoft.com", "onelake.blob.fabric.microsoft.com"]
)
def test_hard_coded_names_lead_here(
    served: Lake, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Way C: the client has only OneLake's own addresses."""
    with requests.Session() as session:
        session.trust_env, session.verify = False, served.ready.ca
        session.proxies = {"https": served.ready.proxy}
        secret = {"grant_type": "client_credentials", "client_secret": served.ready.token}
        tokens = "https://login.microsoftonline.com/some-tenant/oauth2/v2.0/token"
        issued = session.post(tokens, data=secret).json()["access_token"]
        session.headers["Authorization"] = f"Bearer {issued}"
        address = f"https://{name}/{served.name}/{ZONE}/t/{number(1)}"
        assert session.put(
            address, data=parquet(id=[1]), headers={"x-ms-blob-type": "BlockBlob"}
        ).ok
        assert session.get(address).content == parquet(id=[1])
        assert session.delete(address).status_code == (202 if ".blob." in name else 200)
        workspaces = session.get("https://api.fabric.microsoft.com/v1/workspaces").json()
        assert workspaces["value"][0]["id"] == served.ready.workspace


@pytest.mark.parametrize(
    "line",
    [
        b"CONNECT example.com:443 HTTP/1.1\r\n\r\n",
        b"CONNECT onelake.dfs.fabric.microsoft.com:22 HTTP/1.1\r\n\r\n",
        b"CONNECT onelake.dfs.fabric.microsoft.com.evil.example:443 HTTP/1.1\r\n\r\n",
        b"CONNECT 127.0.0.1:443 HTTP/1.1\r\n\r\n",
        b"GET http://onelake.dfs.fabric.microsoft.com/ HTTP/1.1\r\n\r\n",
    ],
)
def test_the_proxy_knows_no_other_name(served: Lake, line: bytes) -> None:
    port = int(served.ready.proxy.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(line)
        assert client.recv(100).startswith(b"HTTP/1.1 403")


@contextlib.contextmanager
def command(root: Path, cache: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "mirrorlake.cli", "serve", str(root), "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "lib"), "MIRRORLAKE_CACHE": str(cache)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answered(process: subprocess.Popen[bytes]) -> dict[str, str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1].decode()[-2000:]
    found: dict[str, str] = json.loads(line)
    return found


def test_the_command_says_one_line_and_ends_on_sigterm(tmp_path: Path) -> None:
    port = free_port()
    options = ("--json", "--proxy-port", str(port))
    with command(tmp_path / "lake", tmp_path / "cache", *options) as process:
        told = answered(process)
        names = "dfs blob rest workspace item token ca http proxy account_key"
        assert list(told) == names.split()
        assert told["account_key"] == account_key(told["token"])
        assert told["proxy"] == f"http://127.0.0.1:{port}"
        with requests.Session() as proxied:
            proxied.trust_env, proxied.verify = False, told["ca"]
            proxied.proxies = {"https": told["proxy"]}
            proxied.headers["Authorization"] = f"Bearer {told['token']}"
            found = proxied.get("https://api.fabric.microsoft.com/v1/workspaces", timeout=DEADLINE)
            assert found.json()["value"][0]["id"] == told["workspace"]
        plain = f"{told['http']}/{told['workspace']}/{told['item']}/{ZONE}/u"
        signed = f"{plain}?resource=directory&sig={told['token']}"
        assert requests.put(signed, timeout=DEADLINE).status_code == 201
        assert told["dfs"].startswith("https://localhost:")
        base = f"{told['dfs']}/{told['workspace']}/{told['item']}/{ZONE}"
        headers = {"Authorization": f"Bearer {told['token']}"}
        made = requests.put(
            f"{base}/t?resource=directory", headers=headers, verify=told["ca"], timeout=DEADLINE
        )
        assert made.status_code == 201
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (0, b""), err.decode()[-2000:]
    assert told["token"].encode() not in err
    assert (tmp_path / "lake" / ZONE / "t").is_dir()


def test_without_json_it_prints_what_to_export(tmp_path: Path) -> None:
    with command(tmp_path / "lake", tmp_path / "cache", "--proxy") as process:
        assert process.stdout is not None
        text = ""
        while "HTTPS_PROXY" not in text:
            line = process.stdout.readline().decode()
            assert line, process.communicate()[1].decode()[-2000:]
            text += line
    for word in ("AZURE_AUTHORITY_HOST", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
                 "SSL_CERT_FILE", "AZCOPY_OAUTH_TOKEN_INFO", "account key"):  # fmt: skip
        assert word in text


# At which request of an upload the server is killed: the answer may or may not have come.
STEPS = ("put", "append", "flush", "rename")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("delay", [0.0, *under_long(0.002, 0.01, 0.02)])
def test_a_server_that_is_killed_leaves_no_half_file(
    tmp_path: Path, step: str, delay: float
) -> None:
    body = parquet(id=list(range(200_000)))
    zone = tmp_path / "lake" / ZONE
    cache = tmp_path / "cache"

    def upload(session: requests.Session, base: str, name: str, kill: Any = None) -> None:
        staged, flush = f"{base}/t/_{name}", f"action=flush&position={len(body)}"
        source = {"x-ms-rename-source": staged}
        calls = {
            "put": ("PUT", f"{staged}?resource=file", b"", {}),
            "append": ("PATCH", f"{staged}?action=append&position=0", body, {}),
            "flush": ("PATCH", f"{staged}?{flush}", b"", {}),
            "rename": ("PUT", f"{base}/t/{name}", b"", source),
        }
        for now, (method, url, data, headers) in calls.items():
            if kill and now == step:
                kill()
            assert session.request(method, url, data=data, headers=headers, timeout=9).ok

    for attempt in range(2):
        with command(tmp_path / "lake", cache, "--json") as process:
            told = answered(process)
            base = f"{told['dfs']}/{told['workspace']}/{told['item']}/{ZONE}"
            with requests.Session() as session:
                session.trust_env, session.verify = False, told["ca"]
                session.headers["Authorization"] = f"Bearer {told['token']}"
                if attempt == 0:
                    with contextlib.suppress(requests.RequestException):
                        upload(session, base, number(1), Timer(delay, process.kill).start)
                    process.wait(DEADLINE)
                else:
                    upload(session, base, number(1))
        for file in zone.rglob("*"):
            if file.is_file():
                assert file.read_bytes() == body, file
    assert [p.name for p in sorted((zone / "t").iterdir())] == [number(1)]
