"""Who looks into a published file: the driver, or for a large one on a cluster an executor.

A check reads a file's marker column, and makes Parquet of text: for gigabytes that is more than one
process should do alone. What comes back is small.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from mirrorlake.errors import MirrorlakeError, SetupError
from mirrorlake.landing.check import FileFacts, inspect_file
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.spark.session import cluster_cores
from mirrorlake.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Inspect = Callable[..., FileFacts]
"""Called as `inspect_file` is."""
_log = logging.getLogger(__name__)


def choose_inspection(
    start: Callable[[], SparkSession], sizes: Mapping[str, int], driver_bytes: int
) -> Inspect:
    """How the files of a batch are looked into.

    Args:
        start: called where a file is large and the environment names a cluster.
        sizes: the files' bytes, by their names.
        driver_bytes: the largest file that the driver looks into itself.
    """
    if max(sizes.values(), default=0) <= driver_bytes or cluster_cores(start) is None:
        return inspect_file

    def inspect(storage: Storage, path: str, metadata: TableMetadata, **options: Any) -> FileFacts:
        if sizes.get(path.rpartition("/")[2], 0) > driver_bytes:
            try:
                return inspect_on_executor(start(), storage, path, metadata, **options)
            except SetupError as error:
                _log.warning("%s is read by the driver: %s", path, error)
        return inspect_file(storage, path, metadata, **options)

    return inspect


def inspect_on_executor(
    spark: SparkSession, storage: Storage, path: str, metadata: TableMetadata, **options: Any
) -> FileFacts:
    """`inspect_file`, in a task of its own.

    Raises:
        SetupError: the executors can't run it.
        MirrorlakeError: as `inspect_file`.
        FileNotFoundError: the file is gone.
    """
    from mirrorlake.spark.executors import map_in_arrow

    def run(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        found: FileFacts | Exception
        try:
            found = inspect_file(storage, path, metadata, **options)
        except (MirrorlakeError, FileNotFoundError) as error:
            found = error
        yield pa.RecordBatch.from_pydict({"found": pa.array([pickle.dumps(found)], pa.binary())})

    (row,) = map_in_arrow(spark.range(0, 1, 1, 1), run, "found binary").collect()
    found = pickle.loads(bytes(row["found"]))  # noqa: S301 - what a function of ours has made
    if isinstance(found, Exception):
        raise found
    return cast("FileFacts", found)
