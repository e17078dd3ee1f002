"""The errors that mirrorlake raises: one base class, and one class per kind of error.

A message states the problem and its place (file, row, column), then `Hint:` and the fix. The code
that raises the error gives the hint.
"""

from __future__ import annotations

import collections.abc
import contextlib


class MirrorlakeError(Exception):
    """The base class of all errors of this package.

    Args:
        message: the problem, as a sentence.
        hint: the action that solves it; shown after `Hint:`.
        file: the name of the published file that caused it.
        row: the row in that file, counted from 1.
        column: the column's name.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        file: str | None = None,
        row: int | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.file = file
        self.row = row
        self.column = column

    def __str__(self) -> str:
        text = with_place(self.message, vars(self))
        return self._with_hint(text)

    def _with_hint(self, text: str) -> str:
        """Return a text with the hint, unless the text of another error in it has one."""
        return f"{text} Hint: {self.hint}" if self.hint and " Hint: " not in text else text

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]

    def as_dict(self) -> dict[str, object]:
        """Return the error as `--json` prints it."""
        text = self._with_hint(self.message)
        return {"message": text, "file": self.file, "row": self.row, "column": self.column}


def with_place(text: str, found: collections.abc.Mapping[str, object]) -> str:
    """Return the text of an error or finding with its file, row and column, if they are known."""
    known = ((name, found.get(name)) for name in ("file", "row", "column"))
    where = ", ".join(f"{name} {value}" for name, value in known if value is not None)
    return f"{text} [{where}]" if where else text


@contextlib.contextmanager
def in_file(name: str) -> collections.abc.Iterator[None]:
    """Add this file to errors that are raised in the context and name no file."""
    try:
        yield
    except MirrorlakeError as error:
        error.file = error.file or name
        raise


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message, or the name of its class."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class UsageError(MirrorlakeError):
    """Invalid arguments of a call or a command (exit status 2)."""


class OtherDeltaError(UsageError):
    """An operation that needs Delta's internal transactions, on an unsupported Delta version."""


class SampleError(MirrorlakeError):
    """A lake that holds data of others, and must not be cleared or filled as a sample."""


class SetupError(MirrorlakeError):
    """A missing part of the environment: an extra, Java, Delta's jars, the network, a disk."""


class InvalidNameError(MirrorlakeError):
    """An invalid name of a table, schema or file."""


class MetadataError(MirrorlakeError):
    """A `_metadata.json` that can't be read, or that contradicts an earlier one."""


class DataFileError(MirrorlakeError):
    """A published file that can't be read, or whose rows can't be applied."""


class SchemaError(MirrorlakeError):
    """A column whose type is not supported, or is not compatible with the table."""


class FormatError(MirrorlakeError):
    """A document in the lake whose format is newer than this version of mirrorlake supports."""


class SequenceError(MirrorlakeError):
    """A file number that is used twice or out of range, or a file that changed after planning."""


class SourceError(MirrorlakeError):
    """A database or stream that can't be read, or that lost changes before they were published."""


class BusyError(MirrorlakeError):
    """A resource that another process has locked."""


class AlreadyRunningError(BusyError):
    """Another run of the same plan and lake, or with the same folder of results (exit status 3)."""


class TableNotFoundError(MirrorlakeError):
    """A table that does not exist in the lake."""


class TracesLeftError(MirrorlakeError):
    """Data of a forgotten key that is still present."""


class QueryError(MirrorlakeError):
    """A query that Spark rejected, or that failed."""


class VersionError(QueryError):
    """A version or timestamp at which a table can't be read."""


class FeedError(MirrorlakeError):
    """Changes that a table's change feed does not hold, or can't return."""


class FrameError(MirrorlakeError):
    """A frame that can't be created, or that has expired."""


class RetentionError(MirrorlakeError):
    """A deletion of files that may still be needed."""


class ConflictError(MirrorlakeError):
    """A commit that conflicts with an earlier commit of another writer."""


class CheckError(MirrorlakeError):
    """A problem that a check found: a failed table, an exceeded limit, unexpected rows."""


class TableFailedError(CheckError):
    """A table that failed for a reason that is not in its files; another attempt may succeed."""


class RewriteError(MirrorlakeError):
    """A rewrite of files that would have lost rows; nothing was committed."""
