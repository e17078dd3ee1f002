"""Versioned JSON documents that mirrorlake keeps in a lake.

A document without a `format` has format 1. Older formats are read; a newer format is refused,
because an older version of mirrorlake could lose what it does not know.
"""

from __future__ import annotations

import json
from typing import Any

from mirrorlake.errors import ConflictError, FormatError
from mirrorlake.storage.files import Storage, to_json

_TRIES = 20


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


class NumberedDocuments:
    """Documents of one folder that supersede each other: the newest counts, all are kept.

    Args:
        storage: the lake's files.
        folder: the folder, relative to the lake's root.
        known: the newest format that the caller can read, and the one that it writes.
    """

    def __init__(self, storage: Storage, folder: str, known: int) -> None:
        self._storage = storage
        self._folder = folder
        self._known = known

    def append(self, document: dict[str, Any], what: str) -> int:
        """Write the next document; if two writers append at once, both documents are kept.

        Args:
            document: the document without its format, which this method adds.
            what: the subject of the error message.

        Returns:
            The document's number, from 1.

        Raises:
            ConflictError: other writers won each of 20 attempts.
            FormatError: the newest document has a newer format and can't be superseded.
        """
        self.newest()
        for _ in range(_TRIES):
            number = self.count() + 1
            body = to_json({"format": self._known, **document})
            if self._storage.create(f"{self._folder}/{number:08d}.json", body):
                return number
        raise ConflictError(
            f"{what} changed during each of {_TRIES} attempts to write it.", hint="try again."
        )

    def newest(self) -> dict[str, Any] | None:
        """Return the newest document, or None if there is none.

        Raises:
            FormatError: it has a newer format.
        """
        names = self._names()
        return self._read(names[-1]) if names else None

    def all(self) -> list[dict[str, Any]]:
        """Return all documents, the oldest first."""
        return [self._read(name) for name in self._names()]

    def count(self) -> int:
        """Return the number of documents, by one listing; no document is read."""
        return len(self._names())

    def _names(self) -> list[str]:
        return [e.name for e in self._storage.list(self._folder).files if e.name[0] != "_"]

    def _read(self, name: str) -> dict[str, Any]:
        path = f"{self._folder}/{name}"
        return check_format(json.loads(self._storage.read(path)), path, self._known, file=name)
