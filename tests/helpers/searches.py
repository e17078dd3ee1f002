"""A search for keys that fails."""

from __future__ import annotations

from typing import Any

from mirrorlake.spark import executors


def fail_search(search: Any, session: Any, _key: str, _keys: Any) -> Any:
    """Return the result of `KeySearch.run` if the Python workers have no DuckDB."""

    def fail(_batches: Any) -> Any:
        raise OSError("no such library")

    return executors.map_in_arrow(session.range(1), fail, search.schema)
