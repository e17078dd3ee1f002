"""Recognises a store that ignores conditions: on it two writers would overwrite each other."""

from __future__ import annotations

import uuid
from typing import Any

import obstore
from obstore.exceptions import BaseError

from mirrorlake.errors import SetupError, first_line


def check_conditions(store: Any, unrepeated: Any, folder: str, root: str) -> None:
    """Writes, and renames, where a file is: both must be refused.

    Args:
        store: the object store.
        unrepeated: the same store, whose requests are not repeated.
        folder: where the probe's two files may lie for a moment.
        root: what the message calls the store.

    Raises:
        SetupError: the store has done what it must not, or does nothing at all.
    """
    paths = [f"{folder}/{uuid.uuid4().hex}" for _ in range(2)]
    try:
        for path in paths:
            obstore.put(store, path, b"probe")
    except (BaseError, OSError) as error:
        raise SetupError(
            f"The store of {root} can't be written to: {first_line(error)}",
            hint="check that it is up, its address (AWS_ENDPOINT_URL), the keys and their rights.",
        ) from error
    try:
        for what in ("create", "rename"):
            try:
                if what == "create":
                    obstore.put(unrepeated, paths[1], b"other", mode="create")
                else:
                    obstore.copy(unrepeated, *paths, overwrite=False)
            except (BaseError, OSError):
                continue  # refused; what else went wrong is told by the first real write
            raise SetupError(
                f"The store of {root} ignores conditions: it lets a {what} overwrite a file.",
                hint="writers would lose each other's files. Use a store with conditional writes"
                " (If-None-Match): Amazon S3, MinIO, versitygw, Azure, Google; or a local disk.",
            )
    finally:
        obstore.delete(store, paths)
