"""Clients that must be downloaded first: DuckDB's azure extension and azcopy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from helpers.environments import installed
from helpers.places import ZONE
from helpers.serving import DEADLINE, Lake, number, parquet
from mirrorlake_serve import account_key


@pytest.mark.long
def test_duckdbs_azure_extension_reads_the_tables(served: Lake, tmp_path: Path) -> None:
    """The extension exists as a package for DuckDB 1.4 only, so both are installed separately."""
    extension = duckdb_azure()
    table = pa.table({"id": list(range(1000))})
    write_deltalake(str(served.root / "Tables" / "t"), table)
    parts = f"AccountName=onelake;AccountKey={account_key(served.ready.token)}"
    where = f"DefaultEndpointsProtocol=http;{parts};BlobEndpoint={served.ready.http}/onelake"
    files = f"azure://{served.ready.workspace}/{served.item.id}/Tables/t/*.parquet"
    done = subprocess.run(
        [sys.executable, "-c", DUCKDB, str(extension), where, files],
        env={**os.environ, "PYTHONPATH": str(extension.parents[4])},
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE,
    )
    assert done.stdout.split() == ["1000", str(sum(range(1000)))]


DUCKDB = """
import sys
import duckdb

extension, where, files = sys.argv[1:]
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute(f"LOAD '{extension}'")
connection.execute(f"CREATE SECRET s (TYPE azure, CONNECTION_STRING '{where}')")
print(*connection.execute(f"SELECT count(*), sum(id) FROM read_parquet('{files}')").fetchone())
"""


def duckdb_azure() -> Path:
    """Return the extension, installed beside its DuckDB; skip the test if that fails."""

    def fetch(place: Path) -> None:
        packages = ["duckdb==1.4.4", "duckdb-ext-azure==1.4.4.20260205"]
        command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--target", str(place)]
        subprocess.run([*command, *packages], check=True, timeout=600)

    try:
        target = installed("servers/duckdb-1.4.4", fetch)
    except subprocess.SubprocessError as error:
        pytest.skip(f"needs DuckDB's azure extension, which can't be had: {error}")
    found = list(target.glob("duckdb_ext/extensions/*/*/azure.duckdb_extension"))
    if not found:
        pytest.skip("needs DuckDB's azure extension, which is not made for this machine")
    return found[0]


@pytest.mark.long
def test_azcopy_uploads_and_removes(served: Lake, tmp_path: Path) -> None:
    """azcopy uses our token as its own, uploads in blocks and deletes with its trash."""
    program = azcopy()
    file = tmp_path / "a.parquet"
    file.write_bytes(parquet(id=list(range(1000)), __rowMarker__=[4] * 1000))
    soon = str(int(time.time()) + 3600)
    token = {"access_token": served.ready.token, "expires_on": soon, "expires_in": "3600"}
    token |= {"not_before": "0", "resource": "https://storage.azure.com", "token_type": "Bearer"}
    token |= {"refresh_token": "", "_tenant": "adfs", "_ad_endpoint": served.ready.dfs}
    environment = os.environ | {
        "AZCOPY_OAUTH_TOKEN_INFO": json.dumps(token | {"_token_refresh_source": "TokenStore"}),
        "SSL_CERT_FILE": served.ready.ca,
        "AZCOPY_LOG_LOCATION": str(tmp_path / "log"),
        "AZCOPY_JOB_PLAN_LOCATION": str(tmp_path / "plan"),
    }

    def run(verb: str, *arguments: str, way: str, base: str) -> None:
        suffix = f"--trusted-microsoft-suffixes={base.partition('//')[2]}"
        command = [str(program), verb, *arguments, f"--from-to={way}", suffix]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        assert "Final Job Status: Completed\n" in done.stdout, done.stdout

    blob, dfs = served.ready.blob, served.ready.dfs
    run("copy", str(file), served.url(f"t/{number(1)}", blob), way="LocalBlob", base=blob)
    assert served.files() == [f"t/{number(1)}"]
    assert (served.root / ZONE / "t" / number(1)).read_bytes() == file.read_bytes()
    run("remove", served.url("t", dfs), "--recursive=true", way="BlobFSTrash", base=dfs)
    assert served.files() == []


def azcopy() -> Path:
    """Return the program from its npm package; skip the test if it can't be installed or run."""

    def fetch(place: Path) -> None:
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"]
        package = "@azure-tools/azcopy-linux@10.32.2"
        place.mkdir()
        subprocess.run([*command, str(place), package], check=True, timeout=600)

    try:
        target = installed("servers/azcopy-10.32.2", fetch)
        (found,) = target.glob("node_modules/@azure-tools/azcopy-linux/dist/bin/azcopy_linux_amd64")
        found.chmod(0o755)
        subprocess.run([str(found), "--version"], check=True, capture_output=True)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        pytest.skip(f"needs azcopy: npm, Linux on x86-64, and libsecret-1-0: {error}")
    return found
