"""Publishers' samples through the server to the tables: Microsoft's SDK, and files of CSV."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.storage.filedatalake import DataLakeServiceClient

from helpers.serving import Lake as Served
from helpers.serving import Token, new_lake, number, parquet, serving, session_of
from mirrorlake import Lake
from mirrorlake.errors import TableNotFoundError
from mirrorlake.names import ZONE
from mirrorlake.serve.lakes import Workspace

pytestmark = pytest.mark.long


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("MIRRORLAKE_TOKEN", "t" * 40)
    workspace = Workspace(folder=str(tmp_path / "lakes"))
    with serving(workspace) as ready, session_of(ready) as session:
        yield new_lake(workspace, ready, session, "shop")


@pytest.fixture
def data_lake(served: Served) -> Iterator[DataLakeServiceClient]:
    ready = served.ready
    with DataLakeServiceClient(
        ready.dfs, credential=Token(ready.token), connection_verify=ready.ca
    ) as client:
        yield client


def test_1_create_upload_status_and_remove(
    served: Served, data_lake: DataLakeServiceClient
) -> None:
    """What the SDK of Open Mirroring does: also its status, which it reads as a file."""
    lake = Lake(served.root)
    with data_lake.get_file_system_client(served.ready.workspace) as system:
        folder = system.get_directory_client(f"{served.item.id}/{ZONE}/dbo.schema/t")
        folder.create_directory()
        meta = b'{"keyColumns": ["id"]}'
        with folder.create_file("_metadata.json") as file:
            file.upload_data(meta, overwrite=True)
        for n in (1, 2):
            with folder.create_file(f"_{number(n)}") as staged:
                staged.upload_data(parquet(id=[n, 7], __rowMarker__=[4, 4]), overwrite=True)
                staged.rename_file(
                    f"{served.ready.workspace}/{folder.path_name}/{number(n)}"
                ).close()
        assert not lake.mirror().failed
        names = [path.name.rpartition("/")[2] for path in system.get_paths(folder.path_name)]
        taken = [int(name[:20]) for name in names if name[:20].isdigit()]
        assert max(taken) + 1 == 3  # the next number, whatever the mirror has moved
        monitoring = f"{served.item.id}/Files/Monitoring/tables.json"
        with system.get_file_client(monitoring) as status:
            told = json.loads(status.download_file().readall())
        (table,) = told["tables"]
        assert (table["sourceSchemaName"], table["sourceTableName"]) == ("dbo", "t")
        assert table["metrics"]["processedRowCount"] == 4
        assert sorted(row.id for row in lake.table("dbo.t").read().collect()) == [1, 2, 7]
        folder.delete_directory()
    lake.mirror()
    with pytest.raises(TableNotFoundError):
        lake.table("dbo.t")


def test_8_csv_with_its_own_null_and_a_marker_from_the_third_file(
    served: Served, data_lake: DataLakeServiceClient
) -> None:
    """Five files, and the table after each of them."""
    lake = Lake(served.root)
    meta = {"KeyColumns": ["id"], "fileExtension": "csv", "fileFormat": "csv"}
    meta |= {"FileFormatTypeProperties": {"FirstRowAsHeader": True, "NullValue": "N/A"}}
    files = [
        "id,name,city\n1,Ann,Oslo\n2,Bob,N/A\n",
        "id,name,city\n3,Cid,Rome\n",
        "id,name,city,__rowMarker__\n2,Bob,Paris,1\n",
        "id,name,city,__rowMarker__\n1,N/A,N/A,2\n",
        "id,name,city,__rowMarker__\n3,Cid,N/A,4\n4,Dee,Bonn,4\n",
    ]
    states = [
        {("1", "Ann", "Oslo"), ("2", "Bob", None)},
        {("1", "Ann", "Oslo"), ("2", "Bob", None), ("3", "Cid", "Rome")},
        {("1", "Ann", "Oslo"), ("2", "Bob", "Paris"), ("3", "Cid", "Rome")},
        {("2", "Bob", "Paris"), ("3", "Cid", "Rome")},
        {("2", "Bob", "Paris"), ("3", "Cid", None), ("4", "Dee", "Bonn")},
    ]
    with data_lake.get_file_system_client(served.ready.workspace) as system:
        base = f"{served.item.id}/{ZONE}/people"
        with system.get_file_client(f"{base}/_metadata.json") as file:
            file.upload_data(json.dumps(meta).encode(), overwrite=True)
        for place, (text, state) in enumerate(zip(files, states, strict=True), start=1):
            with system.get_file_client(f"{base}/{number(place, '.csv')}") as file:
                file.upload_data(text.encode(), overwrite=True)
            assert not lake.mirror().failed
            rows = lake.table("people").read().select("id", "name", "city").collect()
            assert {(str(row["id"]), row["name"], row["city"]) for row in rows} == state
