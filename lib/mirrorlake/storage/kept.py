"""Documents that mirrorlake keeps in a lake: JSON objects in files of its own, with a format.

A document without a format is of the first one. An older one is read as it is; a newer one is
refused, since it is not known what would be lost.
"""

from __future__ import annotations

from typing import Any

from mirrorlake.errors import FormatError
from mirrorlake.storage.files import Storage


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
    return check_format(document, path, known, file=path.rpartition("/")[2], hint=hint)


def check_format(
    document: dict[str, Any], what: str, known: int, *, file: str | None = None, hint: str = ""
) -> dict[str, Any]:
    """Refuses a document of a newer format, wherever it is kept.

    Args:
        document: as it was read.
        what: what the message calls it.
        known: the newest format that the caller can read.
        file: its file's name, if it has one of its own.
        hint: what else than an upgrade helps.

    Returns:
        The document with its `format`.

    Raises:
        FormatError: the document is of a newer format.
        TypeError: it is not an object, or its format not a number.

    Example:
        >>> check_format({"at": 7}, "The note", 1)
        {'format': 1, 'at': 7}
    """
    document = {"format": 1} | document
    if document["format"] > known:
        raise FormatError(
            f"{what} is of format {document['format']}; mirrorlake here knows up to {known}.",
            file=file,
            hint=f"upgrade mirrorlake{f', or {hint}' if hint else ''}; nothing has changed.",
        )
    return document
