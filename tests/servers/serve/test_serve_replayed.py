"""Publishers that can't be installed here: their requests, replayed one by one."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path

import pytest

from helpers.places import ZONE
from helpers.serving import Lake, number, parquet

KEYS = b'{"keyColumns": ["id"]}'
BY_TIME = (
    b'{"keyColumns": ["id"], "fileDetectionStrategy": "LastUpdateTimeFileDetection", '
    b'"isUpsertDefaultRowMarker": true}'
)
BODY = parquet(id=[1], __rowMarker__=[4])


def source_of(served: Lake, path: str) -> dict[str, str]:
    return {"x-ms-rename-source": f"/{served.name}/{ZONE}/{path}"}


def test_bc2adls_publishes_and_resets(served: Lake) -> None:
    """Business Central's connector: append and flush in one request, GUID names, marker first."""
    version = {"x-ms-version": "2020-10-02", "x-ms-blob-type": "BlockBlob"}
    assert served.call("GET", "t/_metadata.json", headers=version).status_code == 404
    for _ in range(2):  # the second time after a reset
        meta = "t/_metadata.json"
        assert served.call("PUT", meta, "resource=file", headers=version).status_code == 201
        flush = "position=0&action=append&flush=true"
        assert served.call("PATCH", meta, flush, data=BY_TIME, headers=version).status_code == 202
        name = f"{{{uuid.uuid4()}}}"
        staged = f"t/_{name}.csv.temp"
        assert served.call("PUT", staged, "resource=file", headers=version).status_code == 201
        text = b"__rowMarker__,id\n4,1\n"
        assert served.call("PATCH", staged, flush, data=text, headers=version).status_code == 202
        length = served.call("HEAD", staged, headers=version).headers["Content-Length"]
        assert int(length) == len(text)
        rename = version | source_of(served, staged)
        assert served.call("PUT", f"t/{name}.csv", headers=rename).status_code == 201
        assert served.files("t") == sorted([f"{name}.csv", "_metadata.json"])
        assert served.call("DELETE", "t", "recursive=true", headers=version).status_code == 200
        assert served.files("t") == []


def test_mongodbs_connector_asks_for_a_token_each_time(served: Lake) -> None:
    """Two requests have no version, the rename's source has a query, and the state is read back."""
    staged = f"t/_{number(1)}_TEMP"
    form = {
        "grant_type": "client_credentials",
        "client_id": "x",
        "client_secret": served.ready.token,
    }
    form["scope"] = "https://storage.azure.com/.default"
    for method, path, query, body, headers in (
        ("PUT", staged, "resource=file", b"", {}),
        ("PATCH", staged, "position=0&action=append&flush=true", BODY, {}),
        (
            "PUT", f"t/{number(1)}", "", b"",
            {"x-ms-rename-source": f"{served.url(staged)}?resource=file", "x-ms-version": "2020"},
        ),
        ("PUT", "t/_resume_token.pkl", "resource=file", b"", {}),
        ("PATCH", "t/_resume_token.pkl", "position=0&action=append&flush=true", b"state", {}),
    ):  # fmt: skip
        tokens = f"{served.ready.dfs}/some-tenant/oauth2/v2.0/token"
        token = served.session.post(tokens, data=form).json()["access_token"]
        own = headers | {"Authorization": f"Bearer {token}"}
        assert served.call(method, path, query, data=body, headers=own).status_code < 300
    assert served.call("GET", "t/_resume_token.pkl").content == b"state"
    assert served.files("t") == [number(1), "_resume_token.pkl"]


def test_debezium_fabric_mirror_flushes_with_the_etag_of_its_put(served: Lake) -> None:
    assert served.call("PUT", "dbo.schema/t", "resource=directory").status_code == 201
    path = f"dbo.schema/t/{number(1)}"
    made = served.call("PUT", path, "resource=file")
    served.call("PATCH", path, "action=append&position=0", data=BODY)
    flush = f"action=flush&position={len(BODY)}&close=true"
    etag = {"If-Match": made.headers["ETag"]}
    assert served.call("PATCH", path, flush, headers=etag).status_code == 200


def test_the_landing_zone_sample_opens_a_blob_to_write(served: Lake) -> None:
    """.NET: an empty blob, blocks, the list with the blob's ETag; a copy instead of a rename."""
    blob = served.ready.blob
    agent = {"User-Agent": "azsdk-net-Storage.Blobs/12.24.1", "x-ms-version": "2025-05-05"}
    for n, staged in enumerate((f"t/_{number(1)}.temp", f"t/{number(2)}"), start=1):
        kind = agent | {"x-ms-blob-type": "BlockBlob"}
        made = served.call("PUT", staged, headers=kind, base=blob)
        assert made.status_code == 201
        assert number(2) not in served.files("t")
        block = base64.b64encode(f"{n:048d}".encode()).decode()
        query = f"comp=block&blockid={block.replace('=', '%3D')}"
        assert (
            served.call("PUT", staged, query, data=BODY, headers=agent, base=blob).status_code
            == 201
        )
        text = f'<?xml version="1.0"?><BlockList><Latest>{block}</Latest></BlockList>'
        match = agent | {"If-Match": made.headers["ETag"]}
        if n == 2:
            copy = agent | {"x-ms-copy-source": served.url(f"t/_{number(1)}.temp", blob)}
            assert served.call("PUT", f"t/{number(1)}", headers=copy, base=blob).status_code == 202
            gone = served.call("DELETE", f"t/_{number(1)}.temp", headers=agent, base=blob)
            assert gone.status_code == 202
        done = served.call(
            "PUT", staged, "comp=blocklist", data=text.encode(), headers=match, base=blob
        )
        assert done.status_code == 201, done.text
    prefix = f"{served.item.id}/{ZONE}/t/"
    address = f"{blob}/{served.ready.workspace}?restype=container&comp=list&prefix={prefix}"
    listed = served.session.get(address, headers=agent).text
    assert listed.index(number(1)) < listed.index(number(2))


def test_the_sample_counts_on_after_the_mirror_has_cleaned_up(served: Lake) -> None:
    """Scenarios 2 and 4: the mirror moves applied files, then a janitor deletes them."""
    for n in (1, 2, 3):
        served.put(f"t/{number(n)}", parquet(id=[n]))
    place = f"{ZONE}/t"
    for n, folder in enumerate(("_ProcessedFiles", "_FilesReadyToDelete"), start=1):
        served.storage.rename(f"{place}/{number(n)}", f"{place}/{folder}/{number(n)}")
        assert served.put(f"t/{number(n)}", BODY).status_code == 409
        assert served.call("DELETE", f"t/{folder}", "recursive=true").status_code == 200
    assert served.put(f"t/{number(4)}", BODY).status_code == 200


def test_azcopy_uploads_and_removes_a_folder(served: Lake) -> None:
    blob = served.ready.blob
    agent = {"User-Agent": "AzCopy/10.28.0 azsdk-go-azblob/v1.6.0", "x-ms-version": "2025-01-05"}
    kind = agent | {"x-ms-blob-type": "BlockBlob", "If-None-Match": "*"}
    assert (
        served.call("PUT", f"t/{number(1)}", data=BODY, headers=kind, base=blob).status_code == 201
    )
    again = served.call("PUT", f"t/{number(1)}", data=BODY, headers=kind, base=blob)
    assert (again.status_code, again.headers["x-ms-error-code"]) == (409, "BlobAlreadyExists")
    for query in ("resource=filesystem&recursive=false", ""):
        path = "t" if query else f"t/{number(1)}"
        assert served.call("GET", path, query, headers=agent).status_code == 200
    assert served.call("DELETE", "t", "recursive=true", headers=agent).status_code == 200
    assert served.files() == []


def test_impulse_sync_lists_the_item_as_a_file_system(served: Lake) -> None:
    """TypeScript: one line of JSON per document; a missing folder counts as empty."""
    version = {"x-ms-version": "2020-02-10"}
    address = f"{served.ready.dfs}/{served.name}?resource=filesystem&directory=Files/LandingZone/t"
    assert served.session.get(f"{address}&recursive=false", headers=version).status_code == 404
    served.put(f"t/{number(1)}", BODY)
    text = served.session.get(f"{address}&recursive=false", headers=version).text
    (document,) = (json.loads(line) for line in text.split("\n") if line)
    assert [p["name"].rpartition("/")[2] for p in document["paths"]] == [number(1)]


def test_mirror_postgres_lists_the_whole_zone_and_starts_over(served: Lake) -> None:
    for n in (1, 2):
        served.put(f"t/{number(n)}", parquet(id=[n]))
    served.storage.rename(f"{ZONE}/t/{number(1)}", f"{ZONE}/t/_ProcessedFiles/{number(1)}")
    address = f"{served.ready.dfs}/{served.ready.workspace}?resource=filesystem"
    address += f"&directory={served.item.id}/{ZONE}&recursive=true"
    paths = served.session.get(address).json()["paths"]
    stems = [Path(p["name"]).stem for p in paths if p["name"].endswith(".parquet")]
    assert max(map(int, stems)) == 2
    assert served.call("DELETE", "t", "recursive=true&paginated=true").status_code == 200
    assert served.call("PUT", "t", "resource=directory").status_code == 201
    assert served.put(f"t/{number(1)}", BODY).status_code == 200


def test_hygge_moves_by_copying(served: Lake) -> None:
    served.put("t/_x", BODY)
    body = served.call("GET", "t/_x").content
    assert served.put(f"t/{number(1)}", body).status_code == 200
    assert served.call("HEAD", f"t/{number(1)}").headers["Content-Length"] == str(len(body))
    assert served.call("DELETE", "t/_x").status_code == 200
    assert served.files("t") == [number(1)]


@pytest.mark.parametrize("tenant", ["adfs", "common", "6c2f0f4e-98c5-4f0e-9a0a-2a8f7c1d5b11"])
def test_what_identity_libraries_look_up_first(served: Lake, tenant: str) -> None:
    base = served.ready.dfs
    for version in ("", "/v2.0"):
        found = served.session.get(f"{base}/{tenant}{version}/.well-known/openid-configuration")
        assert found.json()["token_endpoint"].startswith(f"{base}/{tenant}/oauth2")
    discovered = served.session.get(f"{base}/common/discovery/instance?api-version=1.1").json()
    assert discovered["tenant_discovery_endpoint"].startswith(base)
    refused = served.session.post(
        f"{base}/{tenant}/oauth2/token",
        data={"grant_type": "client_credentials", "client_secret": "wrong"},
    )
    assert (refused.status_code, refused.json()["error"]) == (401, "invalid_client")
