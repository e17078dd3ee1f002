"""Receipts of renames: what tells a retry, whose answer was lost, from a rename of nothing."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from threading import RLock


class Receipts:
    """Which renames were done, so that one whose answer was lost can be asked for again.

    A source that was uploaded once may be renamed once; the same rename again is a retry. A source
    that several uploads shared gives no receipt.

    Args:
        file: the journal, on a local disk.
        most: how many are remembered.
    """

    def __init__(self, file: Path, *, most: int = 10_000) -> None:
        self._file = file
        self._most = most
        self._done: dict[str, str] = {}
        self._uploads: dict[str, int] = {}
        self._lock = RLock()
        with contextlib.suppress(FileNotFoundError):
            lines = file.read_text(encoding="utf-8").split("\n")[:-1]
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    note = json.loads(line)
                    self._learn(note["source"], note["target"])
            if len(lines) > 2 * most:
                self._rewrite()

    def uploaded(self, source: str) -> None:
        """Somebody has begun to upload this file."""
        with self._lock:
            if len(self._uploads) > self._most:
                self._uploads.clear()  # then there is one receipt too many, or a retry fails
            self._uploads[source] = self._uploads.get(source, 0) + 1
            if source in self._done:
                self._note(source, None)

    def renaming(self, source: str, target: str) -> None:
        """The file is about to be renamed."""
        with self._lock:
            if self._uploads.pop(source, 0) <= 1:
                self._note(source, target)

    def failed(self, source: str) -> None:
        """The rename was refused."""
        with self._lock:
            if source in self._done:
                self._note(source, None)

    def is_retry(self, source: str, target: str) -> bool:
        """Whether exactly this rename was done."""
        return self._done.get(source) == target

    def _note(self, source: str, target: str | None) -> None:
        self._learn(source, target)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with open(self._file, "ab", buffering=0) as journal:
            journal.write(json.dumps({"source": source, "target": target}).encode() + b"\n")

    def _learn(self, source: str, target: str | None) -> None:
        self._done.pop(source, None)
        if target is not None:
            self._done[source] = target
        while len(self._done) > self._most:
            del self._done[next(iter(self._done))]

    def _rewrite(self) -> None:
        lines = [json.dumps({"source": s, "target": t}) + "\n" for s, t in self._done.items()]
        staged = self._file.with_suffix(".new")
        staged.write_text("".join(lines), encoding="utf-8")
        staged.replace(self._file)
