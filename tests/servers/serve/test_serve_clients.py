"""Test with unchanged clients: Microsoft's SDKs, adlfs, obstore, pyarrow, delta-rs."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.identity import ClientSecretCredential
from azure.storage.blob import BlobServiceClient
from azure.storage.filedatalake import DataLakeServiceClient
from deltalake import DeltaTable, write_deltalake
from obstore.store import AzureStore

from helpers.places import ZONE
from helpers.serving import DEADLINE, Lake, Token, data_lake_of, number, parquet
from mirrorlake_serve import account_key

KEYS = b'{"keyColumns": ["id"]}'


@pytest.fixture
def data_lake(served: Lake) -> Iterator[DataLakeServiceClient]:
    with data_lake_of(served.ready) as client:
        yield client


@pytest.fixture
def blobs(served: Lake) -> Iterator[BlobServiceClient]:
    ready = served.ready
    with BlobServiceClient(
        ready.blob, credential=Token(ready.token), connection_verify=ready.ca
    ) as client:
        yield client


def in_zone(served: Lake, path: str) -> str:
    return f"{served.item.id}/{ZONE}/{path}"


def test_the_data_lake_sdk_goes_through_its_whole_cycle(
    served: Lake, data_lake: DataLakeServiceClient
) -> None:
    """Create, upload, rename, take the next number and delete, as Microsoft's publisher does."""
    with data_lake.get_file_system_client(served.ready.workspace) as system:
        folder = system.get_directory_client(in_zone(served, "dbo.schema/t"))
        folder.create_directory()
        meta = folder.create_file("_metadata.json")
        meta.append_data(KEYS, offset=0, length=len(KEYS))
        meta.flush_data(len(KEYS))
        assert folder.exists()
        for n in (1, 2):
            body = parquet(id=[n], __rowMarker__=[4])
            staged = folder.create_file(f"_{number(n)}")
            staged.append_data(body, offset=0, length=len(body))
            staged.flush_data(len(body))
            renamed = staged.rename_file(f"{served.ready.workspace}/{folder.path_name}/{number(n)}")
            assert renamed.get_file_properties().size == len(body)
        # The benchmark's client lists the table's folder as if it were a file system.
        deep = f"{served.name}/{ZONE}/dbo.schema/t"
        with data_lake.get_file_system_client(deep) as inner:
            names = [path.name.rpartition("/")[2] for path in inner.get_paths(recursive=False)]
        assert names == [number(1), number(2), "_metadata.json"]
        folder.delete_directory()
        assert not folder.exists()
    assert served.files() == []


def test_upload_data_comes_in_pieces_and_whole(
    served: Lake, data_lake: DataLakeServiceClient
) -> None:
    body = b"0123456789" * 100_000
    with data_lake.get_file_client(served.ready.workspace, in_zone(served, "t/_big")) as file:
        file.upload_data(body, overwrite=True, chunk_size=300_000, max_concurrency=3)
        assert file.download_file().readall() == body
        with pytest.raises((ResourceExistsError, HttpResponseError)):
            file.upload_data(b"other")
        assert file.download_file(offset=5, length=3).readall() == b"567"
        file.delete_file()
        with pytest.raises(ResourceNotFoundError):
            file.upload_data(b"nobody has made it")


def test_a_taken_number_is_an_error_and_the_same_bytes_are_not(
    served: Lake, data_lake: DataLakeServiceClient
) -> None:
    body = parquet(id=[1])
    with data_lake.get_file_client(
        served.ready.workspace, in_zone(served, f"t/{number(1)}")
    ) as file:
        for _ in range(2):
            file.upload_data(body, overwrite=True)
        with pytest.raises(ResourceExistsError, match="taken"):
            file.upload_data(parquet(id=[2]), overwrite=True)
        assert file.download_file().readall() == body


def test_file_systems_leases_and_pages(served: Lake, data_lake: DataLakeServiceClient) -> None:
    for n in range(1, 6):
        served.put(f"t/_{n}", b"x")
    with data_lake.get_file_system_client(served.ready.workspace) as system:
        assert system.exists()
        paths = system.get_paths(in_zone(served, "t"), max_results=2)
        assert [p.name[-1] for p in paths] == ["1", "2", "3", "4", "5"]
        with system.get_file_client(in_zone(served, "t/_1")) as file:
            lease = file.acquire_lease()
            lease.release()
    assert [f.name for f in data_lake.list_file_systems()] == [served.ready.workspace]


def test_an_identity_library_gets_a_token_for_the_secret(
    served: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Way A: configure an unchanged client only with environment variables."""
    ready = served.ready
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", ready.dfs)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", ready.ca)
    with (
        ClientSecretCredential("adfs", str(uuid.uuid4()), ready.token) as credential,
        DataLakeServiceClient(ready.dfs, credential=credential) as client,
        client.get_file_client(ready.workspace, in_zone(served, "t/_x")) as file,
    ):
        file.upload_data(b"hello", overwrite=True)
        assert file.download_file().readall() == b"hello"
    with (
        ClientSecretCredential("adfs", str(uuid.uuid4()), "a wrong secret") as wrong,
        pytest.raises(HttpResponseError, match="client secret"),
    ):
        wrong.get_token("https://storage.azure.com/.default")


def test_the_blob_sdk_uploads_blocks_lists_and_deletes(
    served: Lake, blobs: BlobServiceClient
) -> None:
    body = parquet(id=list(range(100_000)))
    with blobs.get_container_client(served.ready.workspace) as container:
        assert container.exists()
        with container.get_blob_client(in_zone(served, f"t/{number(1)}")) as blob:
            blocks = [body[at : at + 100_000] for at in range(0, len(body), 100_000)]
            for n in reversed(range(len(blocks))):
                blob.stage_block(f"{n:08d}", blocks[n])
            assert not blob.exists() or blob.get_blob_properties().size == 0
            assert served.files() == []
            assert len(blob.get_block_list("uncommitted")[1]) == len(blocks)
            blob.commit_block_list([f"{n:08d}" for n in range(len(blocks))])
            assert blob.download_blob().readall() == body
        with container.get_blob_client(in_zone(served, f"t/{number(2)}")) as blob:
            blob.upload_blob(parquet(id=[1]))
            with pytest.raises(ResourceExistsError):
                blob.upload_blob(parquet(id=[2]))
        prefix = in_zone(served, "t/")
        found = container.list_blobs(name_starts_with=prefix, results_per_page=1)
        assert [b.name for b in found] == [prefix + number(1), prefix + number(2)]
        walked = container.walk_blobs(in_zone(served, ""), delimiter="/")
        assert [b.name for b in walked] == [in_zone(served, "t/")]
        copy = container.get_blob_client(in_zone(served, "t/_copy"))
        with copy:
            copy.start_copy_from_url(f"{served.ready.blob}/{served.name}/{ZONE}/t/{number(2)}")
            assert copy.download_blob().readall() == parquet(id=[1])
            copy.delete_blob()
    assert sorted(served.files()) == [f"t/{number(1)}", f"t/{number(2)}"]


def test_an_account_key_over_http(served: Lake) -> None:
    """Way D: use a connection string, whose requests are signed."""
    ready = served.ready
    parts = {"DefaultEndpointsProtocol": "http", "AccountName": "onelake"}
    parts |= {"AccountKey": account_key(ready.token), "BlobEndpoint": f"{ready.http}/onelake"}
    text = ";".join(f"{name}={value}" for name, value in parts.items())
    with (
        BlobServiceClient.from_connection_string(text) as client,
        client.get_blob_client(ready.workspace, in_zone(served, "t/_ö x")) as blob,
    ):
        blob.upload_blob(b"signed")
        assert blob.download_blob().readall() == b"signed"
    wrong = text.replace(account_key(ready.token), account_key("x" * 64))
    with (
        BlobServiceClient.from_connection_string(wrong, retry_total=0) as client,
        client.get_blob_client(ready.workspace, in_zone(served, "t/_ö x")) as blob,
        pytest.raises(HttpResponseError),
    ):
        blob.download_blob()


def test_adlfs_by_a_connection_string(served: Lake) -> None:
    adlfs = pytest.importorskip("adlfs")
    ready = served.ready
    text = f"AccountName=onelake;AccountKey={account_key(ready.token)};"
    text += f"BlobEndpoint={ready.http}/onelake"

    system = adlfs.AzureBlobFileSystem(connection_string=text, skip_instance_cache=True)
    base = f"{ready.workspace}/{in_zone(served, 't')}"
    system.pipe_file(f"{base}/{number(1)}", parquet(id=[1]))
    assert system.cat_file(f"{base}/{number(1)}") == parquet(id=[1])
    assert system.ls(base, detail=False) == [f"{base}/{number(1)}"]
    assert system.isdir(base)
    system.rm_file(f"{base}/{number(1)}")
    assert not system.exists(f"{base}/{number(1)}")
    assert served.files() == []


def store_of(served: Lake, **options: Any) -> AzureStore:
    ready = served.ready
    return AzureStore(
        container_name=ready.workspace,
        account_name="onelake",
        endpoint=ready.http,
        token=ready.token,
        client_options={"allow_http": True},
        **options,
    )


def test_obstore_puts_lists_renames_and_deletes_in_batches(served: Lake) -> None:
    store = store_of(served, prefix=in_zone(served, "t"))
    body = parquet(id=[1])
    obstore.put(store, "_a", body)
    obstore.rename(store, "_a", number(1))
    obstore.put(store, "_b", b"b")
    obstore.put(store, "_c", b"c")
    assert [m["path"] for page in obstore.list(store) for m in page] == [number(1), "_b", "_c"]
    assert bytes(obstore.get(store, number(1)).bytes()) == body
    assert bytes(obstore.get_range(store, number(1), start=0, end=4)) == b"PAR1"
    obstore.delete(store, ["_b", "_c"])
    assert served.files() == [f"t/{number(1)}"]


PYARROW = """
import sys
import pyarrow.fs as pafs

host, key, base, file = sys.argv[1:]
system = pafs.AzureFileSystem(
    "onelake",
    account_key=key,
    blob_storage_authority=host,
    dfs_storage_authority=host,
    blob_storage_scheme="http",
    dfs_storage_scheme="http",
)
body = open(file, "rb").read()
name = f"{base}/{1:020d}.parquet"
system.create_dir(base)
with system.open_output_stream(name) as sink:
    sink.write(body)
with system.open_input_file(name) as source:
    assert source.read() == body
assert [info.path for info in system.get_file_info(pafs.FileSelector(base))] == [name]
assert system.get_file_info(f"{base}/nothing").type == pafs.FileType.NotFound
system.delete_file(name)
"""


def test_pyarrow_reads_and_writes(served: Lake, tmp_path: Path) -> None:
    """Run in a separate process, because pyarrow's C++ client may abort its process."""
    file = tmp_path / "a.parquet"
    file.write_bytes(parquet(id=[7]))
    host = served.ready.http.removeprefix("http://")
    base = f"{served.ready.workspace}/{in_zone(served, 't')}"
    arguments = [host, account_key(served.ready.token), base, str(file)]
    subprocess.run([sys.executable, "-c", PYARROW, *arguments], check=True, timeout=DEADLINE)
    assert served.files() == []


def test_delta_rs_reads_the_tables(served: Lake) -> None:
    table = pa.table({"id": list(range(1000))})
    write_deltalake(str(served.root / "Tables" / "t"), table)
    options = {
        "account_name": "onelake",
        "endpoint": served.ready.http,
        "bearer_token": served.ready.token,
        "allow_http": "true",
    }
    address = f"az://{served.ready.workspace}/{served.item.id}/Tables/t"
    read = DeltaTable(address, storage_options=options)
    assert read.to_pyarrow_table().sort_by("id").equals(table)
    with pytest.raises(Exception, match=r"(?i)forbidden|403|permission"):
        write_deltalake(address, table, mode="append", storage_options=options)
    assert read.version() == 0
