"""Microsoft's SDK publishes through the server to the tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.storage.filedatalake import DataLakeServiceClient

from helpers.places import ZONE
from helpers.serving import Lake as Served
from helpers.serving import data_lake_of, new_lake, number, parquet, serving, session_of
from mirrorlake import Lake
from mirrorlake.errors import TableNotFoundError
from mirrorlake_serve import Workspace

pytestmark = pytest.mark.long


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("MIRRORLAKE_TOKEN", "t" * 40)
    workspace = Workspace(folder=str(tmp_path / "lakes"))
    with serving(workspace) as ready, session_of(ready) as session:
        yield new_lake(workspace, ready, session, "shop")


@pytest.fixture
def data_lake(served: Served) -> Iterator[DataLakeServiceClient]:
    with data_lake_of(served.ready) as client:
        yield client


def test_1_create_upload_status_and_remove(
    served: Served, data_lake: DataLakeServiceClient
) -> None:
    """The calls of the Open Mirroring SDK, with the status that it reads from a file."""
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
        assert max(taken) + 1 == 3  # the next number, even if the mirror has moved files
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


STUDENTS = {
    "KeyColumns": ["town", "id"],
    "SchemaDefinition": {
        "Columns": [
            {"Name": "town", "DataType": "String"},
            {"Name": "id", "DataType": "Int32"},
            {"Name": "name", "DataType": "String", "IsNullable": True},
            {"Name": "mail", "DataType": "String", "IsNullable": True},
        ]
    },
    "FileFormat": "DelimitedText",
    "FileExtension": "csv",
    "FileFormatTypeProperties": {
        "FirstRowAsHeader": True,
        "RowSeparator": "\r\n",
        "ColumnSeparator": ",",
        "QuoteCharacter": '"',
        "EscapeCharacter": "\\",
        "NullValue": "N/A",
        "Encoding": "UTF-8",
    },
}
FILES = {
    1: ["town,id,name,mail", "Ulm,1,Ann,a@x.org", "Ulm,2,N/A,b@x.org", "Jena,3,Cy,N/A"],
    2: ["town,id,name,mail,__rowMarker__", 'Ulm,4,"Di, the 4th",d@x.org,0', "Jena,5,Ed,,0"],
    3: ["town,id,name,mail,__rowMarker__", "Jena,3,Cy,c@x.org,1", "Ulm,2,Bo,b@x.org,1"],
    4: ["town,id,name,mail,__rowMarker__", "Ulm,1,,,2", "Ulm,4,,,2", "Jena,5,,,2"],
    5: ["town,id,name,mail,turn", "Bonn,6,Flo,f@x.org,400", "Bonn,7,Gus,N/A,401"],
}
CHANGED = {("Ulm", 2, "Bo", "b@x.org"), ("Jena", 3, "Cy", "c@x.org")}
STATES = {
    1: {("Ulm", 1, "Ann", "a@x.org"), ("Ulm", 2, None, "b@x.org"), ("Jena", 3, "Cy", None)},
    2: {
        *(("Ulm", 1, "Ann", "a@x.org"), ("Ulm", 2, None, "b@x.org"), ("Jena", 3, "Cy", None)),
        *(("Ulm", 4, "Di, the 4th", "d@x.org"), ("Jena", 5, "Ed", "")),
    },
    3: {
        *CHANGED,
        *(("Ulm", 1, "Ann", "a@x.org"), ("Ulm", 4, "Di, the 4th", "d@x.org")),
        ("Jena", 5, "Ed", ""),
    },
    4: CHANGED,
    5: {
        *((*row, None) for row in CHANGED),
        *(("Bonn", 6, "Flo", "f@x.org", "400"), ("Bonn", 7, "Gus", None, "401")),
    },
}


def test_8_csv_files_of_five_kinds(served: Served, data_lake: DataLakeServiceClient) -> None:
    """CSV without and with a marker, with changes, deletes and an undeclared column."""
    lake = Lake(served.root)
    with data_lake.get_file_system_client(served.ready.workspace) as system:
        folder = system.get_directory_client(f"{served.item.id}/{ZONE}/students")
        with folder.create_file("_metadata.json") as file:
            file.upload_data(json.dumps(STUDENTS).encode(), overwrite=True)
        for n, lines in FILES.items():
            name = number(n).replace(".parquet", ".csv")
            with folder.create_file(name) as file:
                file.upload_data("\r\n".join(lines).encode(), overwrite=True)
            assert not lake.mirror().failed
            rows = lake.table("students").read().collect()
            assert {tuple(row) for row in rows} == STATES[n], n
            assert len(rows) == len(STATES[n])
