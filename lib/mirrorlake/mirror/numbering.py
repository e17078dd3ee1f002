"""Which file comes when: by the numbers in their names, or by the time of their modification.

Files without numbers get theirs from the plans: what a plan holds has the plan's numbers, what is
new comes after the last applied one.
"""

from __future__ import annotations

from mirrorlake.landing.check import file_hash
from mirrorlake.landing.identity import Identity
from mirrorlake.landing.metadata import BY_TIME, TableMetadata
from mirrorlake.landing.zone import Folder, by_number, by_time
from mirrorlake.mirror.plan import Plan, plan_of
from mirrorlake.storage import Listing, Storage


def number_files(
    storage: Storage, identity: Identity, metadata: TableMetadata, listing: Listing, last: int
) -> Folder:
    """The folder's data files by their place in the table's sequence.

    Args:
        storage: the lake's files.
        identity: whose files they are.
        metadata: says which of the two orders counts.
        listing: what lies in the folder.
        last: the last applied number.

    Raises:
        SequenceError: numbers in names that make no sense.
    """
    if metadata.strategy != BY_TIME:
        return by_number(identity.table, listing)
    plan = plan_of(storage, identity, last) if last else None
    applied = _still_there(storage, identity, listing, plan) if plan else {}
    return by_time(identity.table, listing, applied, last)


def _still_there(
    storage: Storage, identity: Identity, listing: Listing, plan: Plan
) -> dict[str, int]:
    """A plan's files that lie in the folder as planned; a new one of an old name is not among."""
    found = {}
    for planned in plan.files:
        entry = listing.file(planned.name)
        if entry is None or entry.size != planned.size:
            continue
        path = f"{identity.table.folder}/{planned.name}"
        if planned.sha256 == file_hash(storage, path):
            found[planned.name] = plan.numbers[planned.name]
    return found
