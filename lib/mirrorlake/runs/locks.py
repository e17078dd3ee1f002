"""One run of a plan at a time: a lease in each lake that it works on, and one on this machine.

The machine's own counts where no lake can hold one: without a root, on a lake that is read-only, or
where there is none yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from obstore.exceptions import PermissionDeniedError

from mirrorlake.errors import AlreadyRunningError
from mirrorlake.lease import Lease, LeaseHeldError
from mirrorlake.names import STATE, fingerprint
from mirrorlake.paths import lake_path, may_be_lake, state
from mirrorlake.storage import Storage, storage_errors

_LETTERS = 12  # of a fingerprint


@contextlib.contextmanager
def only_run(plan: str, roots: Iterable[str]) -> Iterator[None]:
    """Keeps other runs of a plan from the same lakes.

    Args:
        plan: its name.
        roots: the lakes, as the parameters name them.

    Raises:
        AlreadyRunningError: there is such a run; says which one.
        SetupError: the store of a lake can't be reached.
    """
    places = sorted({lake_path(root) for root in roots})
    what = f"The plan {plan}" + (f" on {', '.join(places)}" if places else "")
    with contextlib.ExitStack() as held:
        try:
            for place in places or [""]:
                name = f"{slug(plan)}-{fingerprint(plan + chr(0) + place, _LETTERS)}"
                held.enter_context(Lease(_machine(), f"plans/{name}.lease", what))
                if place and may_be_lake(place):
                    path = f"{STATE}/plans/{slug(plan)}-{fingerprint(plan, _LETTERS)}.lease"
                    # A lake that can't be written to: only runs on this machine are kept away.
                    refused = contextlib.suppress(OSError, PermissionDeniedError)
                    with storage_errors(place), refused:
                        held.enter_context(Lease(Storage(place), path, what))
        except LeaseHeldError as error:
            raise AlreadyRunningError(error.message, hint=error.hint) from None
        yield


def _machine() -> Storage:
    """Where this machine's locks are: a service may have no home that it can write to."""
    chosen = state()
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        if os.access(chosen, os.W_OK):
            return Storage(chosen)
    except OSError:
        pass
    return Storage(Path(tempfile.gettempdir()) / f"mirrorlake-{os.getuid()}")


def slug(name: str) -> str:
    """A name as a part of a file's name; what is no letter, digit, dot or dash becomes `_`."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip(".")[:60] or "_"
