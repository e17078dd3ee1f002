"""OpenLineage events of a run, by its own client, where `OPENLINEAGE_URL` names an endpoint.

One job a step. Outputs are the tables with a commit in the step's time; inputs are the tables that
its parameters name, or all tables of its lake, at the version that they had when the step began.
"""

from __future__ import annotations

import importlib
import os
import uuid
from datetime import datetime
from typing import Any

from mirrorlake.paths import lake_path, may_be_lake

ENDPOINT = "OPENLINEAGE_URL"
_STATES = {"done": "COMPLETE", "failed": "FAIL", "stopped": "ABORT"}


def wants_lineage() -> bool:
    """Whether an endpoint is set."""
    return bool(os.environ.get(ENDPOINT))


def send_lineage(document: dict[str, Any]) -> None:
    """Sends two events for each step that ran: its start, and how it ended.

    Args:
        document: the run's record.

    Raises:
        ModuleNotFoundError: the package openlineage-python is not installed.
    """
    client = importlib.import_module("openlineage.client").OpenLineageClient()
    events = importlib.import_module("openlineage.client.event_v2")
    for index, step in enumerate(document["steps"], 1):
        if step["status"] not in _STATES or len(step["times"]) < 2:
            continue
        inputs, outputs = datasets(step)
        run = events.Run(str(uuid.uuid5(uuid.NAMESPACE_URL, f"{document['run']}/{index}")))
        job = events.Job("mirrorlake", f"{document['plan']}.{step['name']}")
        states = [("START", step["times"][0]), (_STATES[step["status"]], step["times"][1])]
        for state, moment in states:
            client.emit(
                events.RunEvent(
                    eventTime=moment,
                    eventType=events.RunState[state],
                    run=run,
                    job=job,
                    producer=events.PRODUCER,
                    inputs=[_dataset(events.InputDataset, *one) for one in inputs],
                    outputs=[_dataset(events.OutputDataset, *one) for one in outputs],
                )
            )


def datasets(
    step: dict[str, Any],
) -> tuple[list[tuple[str, str, int]], list[tuple[str, str, int]]]:
    """A step's inputs and outputs: the lake's root, the table, the version."""
    root = step["parameters"].get("root")
    place = lake_path(root) if isinstance(root, str) and root else ""
    if not place or not may_be_lake(place):
        return [], []
    from mirrorlake.delta.commits import read_versions
    from mirrorlake.lake import Lake

    lake = Lake(place)
    began, ended = (datetime.fromisoformat(text).timestamp() * 1000 for text in step["times"][:2])
    chosen = step["parameters"].get("table") or step["parameters"].get("tables") or ""
    named = {part.strip() for part in str(chosen).split(",") if part.strip()}
    inputs, outputs = [], []
    for name in lake.tables():
        timeline = read_versions(lake.storage, name.table_path)
        before, after = timeline.at_or_before(int(began)), timeline.at_or_before(int(ended))
        if after > before:
            outputs.append((place, str(name), after))
        if before in timeline.versions and (not named or str(name) in named):
            inputs.append((place, str(name), before))
    return inputs, outputs


def _dataset(kind: Any, root: str, table: str, version: int) -> Any:
    facet = importlib.import_module("openlineage.client.facet_v2").dataset_version_dataset
    namespace = root if "://" in root else f"file://{root}"
    version_facet = facet.DatasetVersionDatasetFacet(datasetVersion=str(version))
    return kind(namespace=namespace, name=table, facets={"version": version_facet})
