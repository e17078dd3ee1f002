"""The process of `writers.py`: root, number of batches per writer, and a log for each writer.

All writers are forked from one process that has imported the library, because eight starts take
longer than the writes. The process prints their process ids and, at the end, their exit statuses.
"""

from __future__ import annotations

import os
import sys

from mirrorlake import Publisher
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage


def write(root: str, writer: int, batches: int, log: str) -> None:
    publisher = Publisher(Storage(root), TableName(None, "t"), keys=["id"])
    with open(log, "ab", buffering=0) as done:
        for number in range(batches):
            batch = writer * 1000 + number
            published = publisher.insert([{"id": batch}])
            done.write(f"{batch} {published.file}\n".encode())
            os.fsync(done.fileno())


def start(root: str, writer: int, batches: int, log: str) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            write(root, writer, batches, log)
            status = 0
        finally:
            os._exit(status)
    return child


def main() -> None:
    root, batches, *logs = sys.argv[1:]
    each = zip(map(int, batches.split(",")), logs, strict=True)
    pids = [start(root, writer, count, log) for writer, (count, log) in enumerate(each)]
    print(*pids, flush=True)
    print(*[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids], flush=True)


if __name__ == "__main__":
    main()
