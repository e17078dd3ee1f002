"""The public API: its exports, and the rule which methods act and which only preview."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import mirrorlake
from mirrorlake import Lake, Publisher, Table
from mirrorlake.feed.changes import Changes
from mirrorlake.history import frames
from mirrorlake.layout import api
from mirrorlake.mirror.operations import Operations
from mirrorlake.partitioning.table_policy import TablePolicy
from mirrorlake.rows.row_history import RowTracking
from mirrorlake.views.api import Views

ACTS = [
    frames.Frames.create, frames.Frames.release,
    Lake.archive, Lake.publisher, Lake.update_dimension,
    Operations.defaults, Operations.pause, Operations.replay, Operations.resume,
    Operations.undrop,
    Table.archive, Table.dimension,
    api.Optimize.compact, api.Optimize.purge, api.Optimize.vorder, api.Optimize.z_order,
    RowTracking.enable,
    TablePolicy.alter_merge, TablePolicy.delete, TablePolicy.run, TablePolicy.set,
    Views.create, Views.refresh,
]  # fmt: skip
ONLY_SAYS = [
    Lake.forget,
    Table.delete, Table.restore, Table.vacuum,
    Operations.reseed, Operations.skip,
    RowTracking.disable, RowTracking.drop,
    Views.drop,
]  # fmt: skip
GROUPS = [
    *(Changes, Lake, Operations, api.Optimize, Publisher, RowTracking, Table),
]


def name_of(function: Callable[..., Any]) -> str:
    return function.__qualname__


def test_exports_are_sorted_and_there() -> None:
    names = mirrorlake.__all__
    assert names == sorted(names, key=lambda name: (not name[0].isupper(), name))
    assert dir(mirrorlake) == sorted(names)
    assert all(getattr(mirrorlake, name) is not None for name in names)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mirrorlake.nothing  # noqa: B018 - asking for it is the test


@pytest.mark.parametrize("verb", ACTS, ids=name_of)
def test_what_loses_nothing_acts_unless_it_is_a_dry_run(verb: Callable[..., Any]) -> None:
    parameter = inspect.signature(verb).parameters["dry_run"]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    assert parameter.default is False


@pytest.mark.parametrize("verb", ONLY_SAYS, ids=name_of)
def test_what_deletes_only_says_unless_it_is_applied(verb: Callable[..., Any]) -> None:
    parameter = inspect.signature(verb).parameters["apply"]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    assert parameter.default is False


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_every_parameter_of_a_public_method_is_explained(group: type) -> None:
    methods = inspect.getmembers(group, inspect.isfunction)
    for name, method in methods:
        if name.startswith("_") or method.__qualname__.split(".")[0] != group.__name__:
            continue
        text = inspect.getdoc(method) or ""
        parameters = [*inspect.signature(method).parameters][1:]
        missing = [one for one in parameters if f"{one}:" not in text and f"{one}," not in text]
        # A method with one obvious argument may describe it in its summary.
        assert not missing or len(parameters) == 1, (method.__qualname__, missing)
