"""Runs kept on an object store, seen and finished from another machine."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from helpers.runs_behind_uri import check_runs_behind
from helpers.s3_server import BUCKET

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("_server")]


def test_runs_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORLAKE_STATE", str(tmp_path / "state"))
    check_runs_behind(f"s3://{BUCKET}/{uuid.uuid4().hex}", tmp_path, monkeypatch)
