from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from simulation.world import replaced


@pytest.fixture(autouse=True, scope="package")
def simulated() -> Iterator[None]:
    """Replace store, clock, threads and Spark; one thread of Arrow, so that nothing is random."""
    threads = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    with replaced():
        yield
    pa.set_cpu_count(threads[0])
    pa.set_io_thread_count(threads[1])
