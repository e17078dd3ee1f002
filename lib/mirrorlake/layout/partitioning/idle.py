"""Tables on which nothing was left to do, kept for the next round and the next process.

Nothing but a new version, another policy, or replaced files that fall due makes work for the
process. So one small document spares it the table's log and a job that counts files.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from mirrorlake.names import TableName
from mirrorlake.storage import Storage

FORMAT = 1


@dataclass(frozen=True)
class Idle:
    """What a table was like when nothing was left to do.

    Attributes:
        version: of the table.
        policy: the number of its newest policy.
        files: how many it had; they count against the process's limit.
        due: when replaced files are to be vacuumed, microseconds since 1970; None for never.
    """

    version: int
    policy: int
    files: int = 0
    due: int | None = None

    def holds(self, version: int, policy: int, now: int) -> bool:
        """Whether there is still nothing to do."""
        same = (self.version, self.policy) == (version, policy)
        return same and (self.due is None or now < self.due)


def read_idle(storage: Storage, name: TableName) -> Idle | None:
    """What the last process found; None if there was work to do, or it knew another format."""
    document = storage.read_json(_path(name)) or {}
    if document.pop("format", None) != FORMAT:
        return None
    return Idle(**document)


def write_idle(storage: Storage, name: TableName, idle: Idle) -> None:
    """Keeps it."""
    storage.write_json(_path(name), {"format": FORMAT, **asdict(idle)})


def _path(name: TableName) -> str:
    return f"{name.partitioning_path}/idle.json"
