"""Shards: several mirrors of one lake, each with the tables that a hash of their names gives it.

Which shard a table is in depends on its name and the number of shards alone, so that every process
on every machine agrees about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from mirrorlake.errors import UsageError

_WRITTEN = re.compile(r"(\d{1,4})/(\d{1,4})", re.ASCII)
_LABEL = re.compile(r"(\d{1,4})-of-(\d{1,4})", re.ASCII)


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
        found = _LABEL.fullmatch(label)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            return None
        return cls(int(found[1]), int(found[2]))

    def has(self, folder: str) -> bool:
        """Whether a table is in this shard, by its folder relative to the lake's root."""
        digest = sha256(folder.encode(errors="surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.number - 1


ALL = Shard(1, 1)
"""All tables: the share of a mirror that has none beside it."""
