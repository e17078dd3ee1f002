"""Documents that mirrorlake keeps in a lake: JSON objects in files of its own, with a format.

A document without a format is of the first one. An older one is read as it is; a newer one is
refused, since it is not known what would be lost.
"""

from __future__ import annotations

from typing import Any

from mirrorlake.errors import FormatError
from mirrorlake.storage import Storage


def read_kept(storage: Storage, path: str, known: int, *, hint: str = "") -> dict[str, Any] | None:
    """Reads a document.

    Args:
        storage: the lake's files.
        path: the file, relative to the lake's root.
        known: the newest format that the caller can read.
        hint: what else than an upgrade helps against a newer format.

    Returns:
        The document with its `format`; None if there is no file.

    Raises:
        FormatError: the document is of a newer format.
        ValueError: the file is not JSON.
        TypeError: it is not an object, or its format not a number.

    Example:
        >>> from tempfile import mkdtemp
        >>> storage = Storage(mkdtemp())
        >>> storage.write_json("note.json", {"format": 1, "at": 7})
        >>> read_kept(storage, "note.json", 1)
        {'format': 1, 'at': 7}
    """
    document: dict[str, Any] | None = storage.read_json(path)
    if document is None:
        return None
    document = {"format": 1} | document
    if document["format"] > known:
        raise FormatError(
            f"{path} is of format {document['format']}; mirrorlake here knows up to {known}.",
            file=path.rpartition("/")[2],
            hint=f"upgrade mirrorlake{f', or {hint}' if hint else ''}; nothing has changed.",
        )
    return document
