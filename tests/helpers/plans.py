"""Plans of files that lie in a zone, for tests that look at nothing but plans."""

from __future__ import annotations

from mirrorlake.landing import check
from mirrorlake.landing.metadata import Identity
from mirrorlake.mirror import next_batch
from mirrorlake.storage.files import Storage


def facts_of(
    storage: Storage, identity: Identity, first: int, names: list[str]
) -> list[check.FileFacts]:
    """What is known of files without a look into them."""
    sizes = {entry.name: entry.size for entry in storage.list(identity.table.folder).files}
    return [
        check.FileFacts(name, sizes.get(name, 0), {}, None, number=first + place)
        for place, name in enumerate(names)
    ]


def plan_files(
    storage: Storage, identity: Identity, first: int, names: list[str]
) -> next_batch.Plan:
    """The plan that starts with these files, made now if there is none."""
    return next_batch.make_plan(
        storage, identity, first, facts_of(storage, identity, first, names), "stop"
    )
