"""One writer of `test_publisher_concurrency.py`: root, writer, batches, log of those done."""

from __future__ import annotations

import os
import sys

from mirrorlake.landing.publisher import Publisher
from mirrorlake.names import TableName
from mirrorlake.storage import Storage


def main() -> None:
    root, writer, batches, log = sys.argv[1:]
    publisher = Publisher(Storage(root), TableName(None, "t"), keys=["id"])
    with open(log, "ab", buffering=0) as done:
        for number in range(int(batches)):
            batch = int(writer) * 1000 + number
            published = publisher.insert([{"id": batch}])
            done.write(f"{batch} {published.file}\n".encode())
            os.fsync(done.fileno())


if __name__ == "__main__":
    main()
