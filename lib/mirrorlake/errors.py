"""Every error mirrorlake raises on purpose: one base class, one class per meaning.

A message says what was found and where (file, row, column), then `Hint:` and the fix, which stands
where the error is raised.
"""

from __future__ import annotations

import collections.abc
import contextlib


class MirrorlakeError(Exception):
    """Base of all errors of this package.

    Args:
        message: what was found.
        hint: what to do about it; shown after `Hint:`.
        file: the file's name as published, if one is at fault.
        row: the row's position in that file, counted from 1.
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
        return f"{text} Hint: {self.hint}" if self.hint else text

    def as_dict(self) -> dict[str, object]:
        """The error as the commands' `--json` shows it."""
        text = f"{self.message} Hint: {self.hint}" if self.hint else self.message
        return {"message": text, "file": self.file, "row": self.row, "column": self.column}


def with_place(text: str, found: collections.abc.Mapping[str, object]) -> str:
    """What an error or a finding says, with the file, row and column that are known of it."""
    known = ((name, found.get(name)) for name in ("file", "row", "column"))
    where = ", ".join(f"{name} {value}" for name, value in known if value is not None)
    return f"{text} [{where}]" if where else text


@contextlib.contextmanager
def in_file(name: str) -> collections.abc.Iterator[None]:
    """Errors that are raised meanwhile are of this file, unless they name one themselves."""
    try:
        yield
    except MirrorlakeError as error:
        error.file = error.file or name
        raise


def first_line(error: Exception) -> str:
    """What another library's exception says in its first line, or what it is called."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class UsageError(MirrorlakeError):
    """A call or a command that makes no sense as written (exit status 2)."""


class OtherDeltaError(UsageError):
    """What needs Delta's own transactions, on a Spark whose Delta has others than those known."""


class SampleError(MirrorlakeError):
    """A lake that would be cleared or filled as a sample, but holds what no sample made."""


class SetupError(MirrorlakeError):
    """The machine lacks something: an extra, Java, the Delta jars, the network at first start."""


class InvalidNameError(MirrorlakeError):
    """A table, schema or file name that can't be used."""


class MetadataError(MirrorlakeError):
    """A `_metadata.json` that can't be read, or that contradicts an earlier one."""


class DataFileError(MirrorlakeError):
    """A published file that can't be read or whose rows can't be applied."""


class SchemaError(MirrorlakeError):
    """A column whose type is not supported or doesn't fit the table."""


class FormatError(MirrorlakeError):
    """A file that mirrorlake keeps in the lake is of a newer format than this version knows."""


class SequenceError(MirrorlakeError):
    """A file number that is used twice, out of range, or changed after it was planned."""


class SourceError(MirrorlakeError):
    """A database or stream that can't be read, or that has lost what was not yet published."""


class BusyError(MirrorlakeError):
    """Another process works on the same thing."""


class AlreadyRunningError(BusyError):
    """The same plan runs already on the same lake (exit status 3)."""


class TableNotFoundError(MirrorlakeError):
    """No such table in the lake."""


class TracesLeftError(MirrorlakeError):
    """Something of a person is still there after it was to be forgotten."""


class QueryError(MirrorlakeError):
    """Spark refused or failed a query."""


class VersionError(QueryError):
    """A version or moment that a table no longer has, or never had."""


class FeedError(MirrorlakeError):
    """A table's change feed doesn't hold, or can't give, what was asked for."""


class FrameError(MirrorlakeError):
    """A frame that can't be taken, or that no longer holds."""


class RetentionError(MirrorlakeError):
    """Files would be deleted that somebody may still need."""


class ConflictError(MirrorlakeError):
    """Another writer changed the same files first."""


class CheckError(MirrorlakeError):
    """A check found a problem: a table that stopped, a figure beyond its limit, rows unexpected."""


class RewriteError(MirrorlakeError):
    """A rewrite of files would not have kept every row, so nothing was committed."""
