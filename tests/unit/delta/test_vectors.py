"""Deletion vectors: their serialisation, and the files that contain them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.vectors_by_hand import serialised
from mirrorlake.delta import actions
from mirrorlake.errors import DataFileError
from mirrorlake.storage.files import Storage


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2**34) | st.integers(0, 300_000), max_size=30), st.booleans())
def test_deletion_vectors_of_every_kind(positions: list[int], runs: bool) -> None:
    for some in (positions, [*positions, *range(0, 20_000, 2)]):
        assert actions.parse_vector(serialised(some, runs=runs)).tolist() == sorted(set(some))


def test_invalid_deletion_vectors() -> None:
    with pytest.raises(DataFileError, match="starts with 7"):
        actions.parse_vector(struct.pack("<iq", 7, 0))
    whole = serialised([1, 2, 70_000], runs=True)
    for data in (struct.pack("<iqII", 1_681_511_377, 1, 0, 5), whole[:-3]):
        with pytest.raises(DataFileError, match="is broken"):
            actions.parse_vector(data)
    assert (
        actions.decode_z85("HelloWorld") == b"\x86\x4f\xd2\x6f\xb5\x59\xf7\x5b"
    )  # the format's own example


def test_vectors_in_files(storage: Storage) -> None:
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 3}
    path = actions.vector_path(vector)
    assert path == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    data = serialised([3, 2**33], runs=False)
    storage.write(f"t/{path}", b"xxx" + struct.pack(">i", len(data)) + data + b"crc.")

    def place(file: str) -> tuple[Storage, str]:
        return storage, f"t/{file}"

    found = actions.deleted_positions(place, vector | {"sizeInBytes": len(data)})
    assert found.tolist() == [3, 2**33]
    with pytest.raises(DataFileError, match="length of a deletion vector differs"):
        actions.deleted_positions(place, vector | {"sizeInBytes": len(data) - 1})
    assert (
        actions.vector_path({"storageType": "p", "pathOrInlineDv": "s3://b/a%20b"}) == "s3://b/a b"
    )
    assert actions.vector_path({"storageType": "i", "pathOrInlineDv": "x"}) is None
