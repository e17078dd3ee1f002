"""The landing zone on Azure's blob store, emulated by Azurite."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow.parquet as pq
import pytest

from helpers.azurite import CONTAINER, KEY, Azurite
from helpers.s3_server import check_races
from helpers.writers import publish_side_by_side
from mirrorlake import Publisher
from mirrorlake.landing import zone
from mirrorlake.mirror.lint import lint_zone
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage
from mirrorlake.storage.lease import Lease, LeaseHeldError

pytestmark = pytest.mark.long
TABLE = TableName(None, "t")


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    azurite = Azurite()
    yield azurite
    azurite.close()


@pytest.fixture
def root(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in azurite.variables().items():
        monkeypatch.setenv(name, value)
    return f"az://{CONTAINER}/{uuid.uuid4().hex}"


def test_races_have_one_winner_and_a_lease_one_holder(root: str):
    check_races(root)
    storage = Storage(root)
    assert KEY not in repr(storage)
    with Lease(storage, "x.lease", "it") as lease:
        lease.confirm()
        with pytest.raises(LeaseHeldError):
            Lease(storage, "x.lease", "it").__enter__()
    assert not storage.exists("x.lease")


def test_many_publishers_publish_each_batch_once(root: str):
    Publisher(Storage(root), TABLE, keys=["id"])
    wanted = publish_side_by_side(root)
    storage, found = Storage(root), []
    numbered = zone.list_folder(storage, TABLE).numbered
    for entry in numbered.values():
        with storage.open(f"{TABLE.folder}/{entry.name}") as source:
            found += pq.read_table(source).column("id").to_pylist()
    assert sorted(found) == wanted
    assert sorted(numbered) == list(range(1, len(wanted) + 1))
    assert lint_zone(storage).findings == ()
