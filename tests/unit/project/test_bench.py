"""The arithmetic of benches, and the handling of a bench that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import bench
from helpers.bench import (
    BenchResult,
    bench_names,
    compare,
    join_results,
    run_bench,
    run_script,
)
from mirrorlake.errors import MirrorlakeError, UsageError


def timer(name: str, heard: list[str], *seconds: float) -> Callable[[], float]:
    """Return the given seconds in order, and note each call."""
    rest = iter(seconds)

    def measure() -> float:
        heard.append(name)
        return next(rest)

    return measure


def test_ratios_are_the_median_of_the_pairs_after_a_run_that_does_not_count() -> None:
    heard: list[str] = []
    ours = timer("ours", heard, 100, 1, 4, 2)
    peer = timer("peer", heard, 0.001, 2, 4, 6)
    result = compare("b", "work", ours, peer, 3)
    assert heard == ["ours", "peer"] * 4
    # The pairs' ratios are 2, 1 and 3; the ratio of the medians is a different number.
    assert result == BenchResult("b", {"work": 2, "work, peer": 4}, {"work": 2})
    assert compare("b", "w", timer("", [], 0, 1, 1, 9), timer("", [], 0, 1, 9, 10), 3).ratios == {
        "w": 1.11
    }


def test_more_is_better_and_an_even_number_of_pairs_is_averaged() -> None:
    result = compare("b", "w", timer("", [], 9, 1, 1), timer("", [], 9, 3, 4), 2)
    assert result.ratios == {"w": 3.5}
    assert result.seconds == {"w": 1, "w, peer": 3.5}
    slower = compare("b", "w", timer("", [], 9, 4), timer("", [], 9, 1), 1)
    assert slower.ratios == {"w": 0.25}


def test_a_warm_up_of_its_own_replaces_the_first_runs() -> None:
    heard: list[str] = []
    ours, peer = timer("ours", heard, 1), timer("peer", heard, 2)
    result = compare("b", "w", ours, peer, 1, warm_up=lambda: heard.append("warm"))
    assert heard == ["warm", "ours", "peer"]
    assert result.ratios == {"w": 2}


def test_results_are_joined_under_one_name() -> None:
    parts = [
        BenchResult("a", {"x": 1.0}, {"r": 2.0}, {"GET": 4}, sizes={"file": 5}),
        BenchResult("b", {"y": 3.0}, {}, {"PUT": 1}, {"$ a day": 0.5}),
    ]
    assert join_results("all", parts) == BenchResult(
        "all",
        {"x": 1.0, "y": 3.0},
        {"r": 2.0},
        {"GET": 4, "PUT": 1},
        {"$ a day": 0.5},
        {"file": 5},
    )


def test_figures_are_rounded() -> None:
    result = compare("b", "w", timer("", [], 0, 0.12345), timer("", [], 0, 1.98765), 1)
    assert result.seconds == {"w": 0.123, "w, peer": 1.988}
    assert result.ratios == {"w": 16.1}


def script(folder: Path, text: str) -> Path:
    (folder / "s.py").write_text(text)
    return folder / "s.py"


def test_a_script_hands_over_the_json_of_its_last_line(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "import json, os, sys\n"
        "print('noise'); print('x', file=sys.stderr)\n"
        "print(json.dumps({'arguments': sys.argv[1:], 'word': os.environ['WORD']}))\n",
    )
    result = run_script(path, "a b", "*", env={"WORD": "w"})
    assert 0 < result.pop("seconds") < 60
    assert result == {"arguments": ["a b", "*"], "word": "w"}


def test_a_silent_script_is_only_timed(tmp_path: Path) -> None:
    assert set(run_script(script(tmp_path, ""))) == {"seconds"}


def test_a_script_that_fails_says_why(tmp_path: Path) -> None:
    path = script(tmp_path, "print('{}')\nraise ValueError('out of luck')\n")
    with pytest.raises(MirrorlakeError, match=r"(?s)s\.py failed: .*ValueError: out of luck"):
        run_script(path)
    with pytest.raises(MirrorlakeError, match=r"gone\.py failed"):
        run_script(tmp_path / "gone.py")


def test_benches_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BENCHES", tmp_path)
    (tmp_path / "two.py").write_text(
        "from helpers.bench import BenchResult\n"
        "def run(pairs): return BenchResult('two', {'s': float(pairs)}, {})\n"
    )
    (tmp_path / "one.py").touch()
    (tmp_path / "notes.txt").touch()
    assert bench_names() == ["one", "two"]
    assert run_bench("two", 5) == BenchResult("two", {"s": 5.0}, {})


def test_a_part_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BENCHES", tmp_path)
    (tmp_path / "whole.py").write_text(
        "from helpers.bench import BenchResult\n"
        "def half(pairs): return BenchResult('half', {'s': float(pairs)}, {})\n"
        "PARTS = {'half': half}\n"
        "def run(pairs): raise AssertionError\n"
    )
    (tmp_path / "plain.py").write_text("def run(pairs): raise AssertionError\n")
    assert run_bench("whole", 2, "half").seconds == {"s": 2.0}
    with pytest.raises(UsageError, match=r"no part 'third'.*Hint: it has \['half'\]"):
        run_bench("whole", 1, "third")
    with pytest.raises(UsageError, match=r"no part 'half'.*Hint: it has \[\]"):
        run_bench("plain", 1, "half")


@pytest.mark.parametrize("name", ["gone", "", "../unit/test_bench", "publish.py"])
def test_an_unknown_bench_is_wrong_use(name: str) -> None:
    with pytest.raises(UsageError, match=r"There is no bench .*Hint: there are \[.*'publish'"):
        run_bench(name, 1)


def test_each_bench_has_the_function_that_is_called() -> None:
    assert {"publish", "startup"} <= set(bench_names())
    for path in bench.BENCHES.glob("*.py"):
        assert "def run(pairs: int) -> BenchResult:" in path.read_text(encoding="utf-8")
