"""Create plans of published files, for tests of plans only."""

from __future__ import annotations

from mirrorlake.landing import check
from mirrorlake.landing.metadata import Identity, write_identity
from mirrorlake.mirror import next_batch
from mirrorlake.storage.files import Storage


def facts_of(
    storage: Storage, identity: Identity, first: int, names: list[str]
) -> list[check.FileFacts]:
    """Return the facts of files without reading them."""
    sizes = {entry.name: entry.size for entry in storage.list(identity.table.folder).files}
    return [
        check.FileFacts(name, sizes.get(name, 0), {}, None, number=first + place)
        for place, name in enumerate(names)
    ]


def plan_files(
    storage: Storage, identity: Identity, first: int, names: list[str]
) -> next_batch.Plan:
    """Return the plan that starts with these files; create it and the identity if missing."""
    write_identity(storage, identity, make_folder=True)
    return next_batch.make_plan(
        storage, identity, first, facts_of(storage, identity, first, names), "stop"
    )
