"""The tags of a new file: its partition, by which key it is sorted, and when it was created."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mirrorlake.layout.partitioning import tags
from mirrorlake.layout.partitioning.groups import Groups
from mirrorlake.layout.partitioning.policy import Policy
from mirrorlake.layout.partitioning.proof import FileProof
from mirrorlake.spark.gateway import Add


def tagged(
    add: Add,
    proof: FileProof,
    *,
    policy: Policy,
    fingerprint: str,
    groups: Groups,
    sources: Sequence[Add],
    sorted_by: str,
    stored: str | None,
) -> Add:
    """A new file with its tags.

    Args:
        add: as Delta wrote it.
        proof: what it holds.
        policy: the policy.
        fingerprint: the policy's.
        groups: of the operation.
        sources: the files that the operation read.
        sorted_by: the first key's column, as the files name it.
        stored: the column that holds the bucket; None without one.
    """
    found = {tags.POLICY: fingerprint, tags.SORTED: sorted_by}
    if stored is not None:
        found[tags.STORED] = stored
    if proof.task == groups.far:
        found[tags.OUTLIER] = tags.FAR
    else:
        group = groups.groups[proof.task]
        if policy.hash:
            found[tags.BUCKET] = str(group.bucket)
        if policy.range:
            found[tags.BIN] = str(group.bin)
        if group.value:
            value = groups.values[group.value - 1]
            found |= {tags.OUTLIER: tags.DOMINANT, tags.VALUE: json.dumps(value)}
    times = [_arrival(one) for one in _same_partition(sources, found)]
    least, most = min(one for one, _ in times), max(one for _, one in times)
    found[tags.ARRIVED] = f"{least}/{most}"
    if policy.range is not None and policy.range.override_creation_time:
        found[tags.CREATED] = f"{proof.least}/{proof.most}"
    # A file is as old as what it was made of: what goes by age must not take it for new.
    return add | {"tags": found, "modificationTime": most // 1000}


def _arrival(add: Add) -> tuple[int, int]:
    """When the first and the last row of a file were first written, microseconds since 1970."""
    text = (add.get("tags") or {}).get(tags.ARRIVED)
    if text is None:
        written = add["modificationTime"] * 1000
        return written, written
    least, _, most = text.partition("/")
    return int(least), int(most)


def _same_partition(sources: Sequence[Add], found: dict[str, str]) -> Sequence[Add]:
    """The sources of a merge that were in this file's partition; all sources otherwise."""
    names = (tags.POLICY, tags.BUCKET, tags.BIN, tags.OUTLIER, tags.VALUE)
    wanted = [found.get(name) for name in names]
    same = [one for one in sources if [(one.get("tags") or {}).get(n) for n in names] == wanted]
    return same or sources
