"""Shards: several mirrors of one lake, each with its share of the tables, and one mirror of each.

Which shard a table is in depends on its name and the number of shards alone, so that every process
on every machine agrees about it.

Mirrors of different shards work side by side. Each has a lease of its own, and none begins while
somebody has the whole lake's; who wants that one waits until no shard's is held. Plans and commits
are correct without it, too: two mirrors only do some work twice.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256

from mirrorlake.errors import UsageError
from mirrorlake.names import STATE
from mirrorlake.storage.files import Storage
from mirrorlake.storage.lease import PAUSE, busy, is_held, only_one

_WRITTEN = re.compile(r"(\d{1,4})/(\d{1,4})", re.ASCII)
_WHOLE = f"{STATE}/mirror.lock"
_PART, _ENDING = "mirror-", ".lock"  # around a shard's label


@dataclass(frozen=True)
class Shard:
    """One of several equal shares of a lake's tables.

    Attributes:
        number: which one, from 1.
        count: how many there are.

    Raises:
        UsageError: there is no such share.

    Example:
        >>> [n for n in (1, 2, 3) if Shard(n, 3).has("Files/LandingZone/orders")]
        [2]
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise UsageError(
                f"There is no shard {self}.", hint="the first of eight is 1/8, the last 8/8."
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str | None) -> Shard:
        """A shard as people write it: `2/8`; `ALL` where nothing is written.

        Raises:
            UsageError: it is written in another way, or there is no such shard.
        """
        if text is None:
            return ALL
        found = _WRITTEN.fullmatch(text)
        if found is None:
            raise UsageError(f"{text!r} is no shard.", hint="the second of eight is 2/8.")
        return cls(int(found[1]), int(found[2]))

    @property
    def label(self) -> str:
        """The shard as part of a file's name."""
        return f"{self.number}-of-{self.count}"

    @classmethod
    def of_label(cls, label: str) -> Shard | None:
        """The shard that a part of a file's name tells of; None if it tells of none."""
        with suppress(UsageError):
            return cls.parse(label.replace("-of-", "/"))
        return None

    def has(self, folder: str) -> bool:
        """Whether a table is in this shard, by its folder relative to the lake's root."""
        if self == ALL:
            return True
        digest = sha256(folder.encode(errors="surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.number - 1


ALL = Shard(1, 1)
"""All tables: the share of a mirror that has none beside it."""


@contextmanager
def only_mirror(storage: Storage, patience: float | None, shard: Shard = ALL) -> Iterator[None]:
    """Waits until no other mirror works on the lake, then keeps others waiting.

    Args:
        storage: the lake's files.
        patience: how many seconds to wait; None does without the lease.
        shard: the mirror's share of the tables; mirrors of others may work meanwhile.

    Raises:
        BusyError: another mirror went on for too long; says which one.
    """
    if patience is None:
        yield
        return
    deadline = time.monotonic() + patience
    what, path = "mirror of this lake", _WHOLE
    if shard != ALL:
        what, path = f"{what}'s shard {shard}", f"{STATE}/{_PART}{shard.label}{_ENDING}"
    while True:
        left = max(0.0, deadline - time.monotonic())
        with only_one(storage, path, left, what):
            if shard == ALL:
                _await_shards(storage, deadline)
            if shard == ALL or not is_held(storage, _WHOLE):
                yield
                return
        # Not both wait for each other: the shard's mirror steps back.
        if time.monotonic() >= deadline:
            raise busy("mirror of this lake", "it has all tables")
        time.sleep(PAUSE)


def _await_shards(storage: Storage, deadline: float) -> None:
    """Waits until no mirror of a shard is at work; none begins while the lake's lease is held."""
    names = (entry.name for entry in storage.list(STATE).files)
    for name in (n for n in names if n.startswith(_PART) and n.endswith(_ENDING)):
        while is_held(storage, f"{STATE}/{name}"):
            if time.monotonic() >= deadline:
                shard = name[len(_PART) : -len(_ENDING)].replace("-of-", "/")
                raise busy("mirror of this lake", f"that of shard {shard}")
            time.sleep(PAUSE)
