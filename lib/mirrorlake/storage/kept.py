"""Versioned JSON documents that mirrorlake keeps in a lake.

A document without a `format` has format 1. Older formats are read; a newer format is refused,
because an older version of mirrorlake could lose what it does not know.
"""

from __future__ import annotations

from typing import Any

from mirrorlake.errors import FormatError
from mirrorlake.storage.files import Storage


def read_kept(storage: Storage, path: str, known: int, *, hint: str = "") -> dict[str, Any] | None:
    """Read a document.

    Args:
        storage: the lake's files.
        path: the path of the file, relative to the lake's root.
        known: the newest format that the caller can read.
        hint: an alternative to upgrading mirrorlake, for the error of a newer format.

    Returns:
        The document with its `format`; None if the file does not exist.

    Raises:
        FormatError: the document has a newer format.
        ValueError: the file is not JSON.
        TypeError: the document is not an object, or its format is not a number.

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
    """Return a document with its `format`, or raise an error if the format is newer than known.

    Args:
        document: the document as it was read.
        what: the document's name in messages.
        known: the newest format that the caller can read.
        file: the document's file, if it has one of its own.
        hint: an alternative to upgrading mirrorlake.

    Raises:
        FormatError: the document has a newer format.
        TypeError: the document is not an object, or its format is not a number.

    Example:
        >>> check_format({"at": 7}, "The note", 1)
        {'format': 1, 'at': 7}
    """
    document = {"format": 1} | document
    if document["format"] > known:
        raise FormatError(
            f"{what} has format {document['format']}, but this version of mirrorlake reads at most"
            f" {known}.",
            file=file,
            hint=f"upgrade mirrorlake{f', or {hint}' if hint else ''}; nothing was changed.",
        )
    return document
