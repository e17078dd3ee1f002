"""Connections to a PostgreSQL server: for queries, for replication, for Arrow; no secret is shown.

All sessions print values in the same way, so that a row of the snapshot and a row of the stream
look alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from adbc_driver_postgresql import dbapi
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from mirrorlake.errors import BusyError, MirrorlakeError, SourceError, UsageError

_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "lc_monetary": "C",
    "row_security": "off",  # an error instead of missing rows
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
_APPLICATION = "mirrorlake"


class UnreachableError(SourceError):
    """The server is not there, or ends its connections; it may be back soon."""


class Server:
    """A server and a database, by a connection string that is never shown.

    Args:
        dsn: a libpq connection string or URI; what it leaves out comes from libpq's variables.

    Raises:
        UsageError: the string can't be read.
    """

    def __init__(self, dsn: str) -> None:
        try:
            found = conninfo_to_dict(dsn)
        except psycopg.Error:
            # libpq's message quotes the text around the fault: a part of the password, maybe.
            raise UsageError(
                "The connection string can't be read.",
                hint="write postgresql://user@host:5432/database, or host=… dbname=… user=….",
            ) from None
        self._parts = {name: str(value) for name, value in found.items() if value is not None}
        given = self._parts.pop("options", "")
        options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        self._parts |= {
            "options": f"{given} {options}".strip(),
            "application_name": _APPLICATION,
            "connect_timeout": self._parts.get("connect_timeout", "10"),
        }

    def query(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection for queries, in autocommit.

        Raises:
            SourceError: there is none to be had.
        """
        with self.explained():
            return psycopg.connect(make_conninfo("", **self._parts), autocommit=True)

    def replication(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of the replication protocol; raises as `query`."""
        with self.explained():
            parts = self._parts | {"replication": "database"}
            return psycopg.connect(make_conninfo("", **parts), autocommit=True)

    def arrow(self) -> dbapi.Connection:
        """A connection whose results are Arrow batches; raises as `query`."""
        with self.explained():
            return dbapi.connect(make_conninfo("", **self._parts))

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns the driver's errors into ours, each with its fix and without the password."""
        try:
            yield
        except (psycopg.Error, dbapi.Error) as error:
            raise self.explain(error) from None

    def explain(self, error: Exception) -> MirrorlakeError:
        """What a driver's error means, in our words where the fix is known."""
        text = " ".join(str(error).split())
        for secret in (self._parts.get("password"), self._parts.get("sslpassword")):
            if secret:
                text = text.replace(secret, "…")
        user = self._parts.get("user")
        state = getattr(error, "sqlstate", None)
        if "password authentication failed" in text or state in ("28P01", "28000"):
            return SourceError(text, hint="check user and password, and the server's pg_hba.conf.")
        if "is active for PID" in text:
            return BusyError(text, hint="another process reads this slot; stop it, or --slot NAME.")
        if state == "53400" or "replication slots are in use" in text:
            hint = "ALTER SYSTEM SET max_replication_slots = 20; then restart the server."
            return SourceError(text, hint=hint)
        if "must be superuser or replication role" in text:
            hint = f'ALTER ROLE "{user}" REPLICATION;' if user else "ALTER ROLE … REPLICATION;"
            return SourceError(text, hint=hint)
        if isinstance(error, psycopg.OperationalError) and (state or "08")[:2] in ("08", "57"):
            return UnreachableError(f"PostgreSQL: {text}", hint="check that the server runs.")
        return SourceError(f"PostgreSQL: {text}")


def ident(*names: str) -> str:
    """A name, quoted; parts joined by points."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def quoted(text: str) -> str:
    """A text as an SQL literal, for statements that take no parameters."""
    return "'" + text.replace("'", "''") + "'"
