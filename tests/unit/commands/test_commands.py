"""The commands without Spark: help, wrong use, errors as JSON, dry runs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import write_deltalake
from obstore import exceptions as obstore_errors
from pyarrow import table as rows_of

from helpers.pages import blocks
from helpers.project import PROJECT
from helpers.zones import KEYED, MARKER, Zone
from mirrorlake import Lake
from mirrorlake.cli import main as cli
from mirrorlake.cli import zone
from mirrorlake.cli.printing import say
from mirrorlake.mirror import forget as mirror_forget
from mirrorlake.mirror.state import TableState
from mirrorlake.mirror.status import MirroredTable, MirrorReport, status_of
from mirrorlake.names import TableName, file_name
from mirrorlake.notices import noop
from mirrorlake.partitioning.store import append_policy
from mirrorlake.results import TextTable
from mirrorlake.storage.files import Storage
from mirrorlake_lab import explore
from mirrorlake_runs import RunSummary
from mirrorlake_runs import run as plan_runs

DOCS = PROJECT / "docs"
VERBS = {
    "frame": {"create", "list", "show", "release"},
    "partition": {"set", "show", "run", "stats", "advise", "delete", "alter-merge"},
    "rows": {"enable", "disable", "drop", "show", "history"},
    "source": {"postgres", "debezium", "csv", "kafka"},
    "runs": {"list", "show", "open", "prune"},
    "view": {"create", "refresh", "explain", "check", "list", "drop"},
}
ACT = (
    *("publish", "mirror", "pause", "resume", "replay", "undrop", "optimize", "reorg", "vorder"),
    "defaults",
    *("partition set", "partition alter-merge", "partition run", "partition delete"),
    *("archive", "dimension"),
    *("rows enable", "view create", "view refresh", "frame create", "frame release"),
)
SAY = (
    *("vacuum", "forget", "restore", "skip", "reseed", "maintain"),
    *("rows disable", "rows drop", "view drop", "runs prune"),
)

Run = Callable[..., SimpleNamespace]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process; return its output, its status and its JSON."""

    def call(*arguments: Any, status: int = 0) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["mirrorlake", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert ended.value.code == status, (shown.out, shown.err)
        document = json.loads(shown.out) if "--json" in arguments else None
        return SimpleNamespace(out=shown.out, err=shown.err, json=document)

    return call


def test_tables_fit_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Few columns are a table with folded values; many become one line per value."""
    few = TextTable(("table", "problem"), (("orders", "word " * 40),))
    wide = TextTable(
        tuple(f"column_{n}" for n in range(9)), (tuple(f"value {n}" for n in range(9)),)
    )
    empty = TextTable(tuple(f"column_{n}" for n in range(9, 18)), ())
    say(few, wide, empty)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "word word word" in lines[3]
    assert [line.split()[1] for line in lines if "value" in line] == list(wide.columns)
    assert "no rows" in lines[-3]
    assert "column_17" in lines[-2]


def test_the_version(run: Run) -> None:
    assert run("--version", status=0).out == f"mirrorlake {version('mirrorlake')}\n"
    done = subprocess.run(
        [sys.executable, "-m", "mirrorlake", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"mirrorlake {version('mirrorlake')}\n"


def test_a_watcher_waits_for_the_lake(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    stop = Event()
    stop.set()
    monkeypatch.setattr(zone, "stop_on_signals", lambda: stop)
    shown = run("mirror", tmp_path / "later", "--watch", status=0)
    assert f"{tmp_path}/later does not exist yet" in " ".join(shown.err.split())
    for option in ("--dry-run", "--vorder"):  # refused at once
        refused = run("mirror", tmp_path / "later", "--watch", option, status=2)
        assert f"--watch and {option} exclude each other" in " ".join(refused.err.split())
    refused = run("mirror", tmp_path / "later", "--watch", "--shard", "3/2", status=2)
    assert "There is no shard 3/2" in refused.err
    both = ("--table", "t", "--shard", "1/2")
    refused = run("mirror", tmp_path / "later", "--watch", *both, status=2)
    assert "--table and --shard exclude each other" in " ".join(refused.err.split())


@pytest.mark.parametrize("more", [(), ("--table", "t"), ("--watch", "--json")])
def test_the_mirror_creates_nothing_in_a_folder_without_a_lake(
    run: Run, tmp_path: Path, monkeypatch: Any, more: tuple[str, ...]
) -> None:
    """A path may be mistyped; a watcher waits, because a publisher may still create the lake."""
    stop = Event()
    stop.set()
    monkeypatch.setattr(zone, "stop_on_signals", lambda: stop)
    (tmp_path / "notes.txt").write_text("not of a lake")
    shown = run("mirror", tmp_path, *more, status="--table" in more)
    assert f"{tmp_path} contains no lake" in " ".join(shown.err.split())
    assert shown.json in (None, {"tables": []})
    assert [found.name for found in tmp_path.iterdir()] == ["notes.txt"]


def test_maintenance_warns_about_a_folder_without_a_lake(run: Run, tmp_path: Path) -> None:
    assert "contains no lake" not in run("maintain", tmp_path).err
    (tmp_path / "notes.txt").write_text("not of a lake")
    assert "contains no lake" in run("maintain", tmp_path).err
    (tmp_path / "Tables").mkdir()
    assert "contains no lake" not in run("maintain", tmp_path).err


def test_a_watcher_logs_each_cycle_with_files_or_errors(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = MirroredTable.since(status_of(TableState(None, "t"), None), None)
    error = {"message": "Bad row.", "hint": "", "file": None, "row": None, "column": None}
    cycles = [
        MirrorReport((replace(table, applied_files=2, applied_rows=7),)),
        MirrorReport((table,)),
        MirrorReport((replace(table, error=error),)),
    ]

    def watch(*_: Any, on_report: Any = noop, **__: Any) -> MirrorReport:
        for report in cycles:
            on_report(report)
        return report

    monkeypatch.setattr(Lake, "watch", watch)
    shown = run("mirror", tmp_path, "--watch", status=1)
    first, second = shown.err.splitlines()
    assert re.fullmatch(r"[-0-9]{10} [:0-9]{8} UTC: 2 files with 7 rows applied", first)
    assert second.endswith(" UTC: 0 files with 0 rows applied, 1 table failed; t: Bad row.")
    assert shown.out.endswith("\nLast cycle: 0 files with 0 rows applied, 1 table failed\n")
    assert run("mirror", tmp_path, "--watch", "--json", status=1).err == ""


def test_a_frame_is_of_all_tables_unless_some_are_named(run: Run, tmp_path: Path) -> None:
    for name in ("orders", "sales/orders"):
        write_deltalake(tmp_path / "Tables" / name, rows_of({"id": [1]}))
    planned = run("frame", "create", tmp_path, "m", "--dry-run", "--json").json
    assert [one["table"] for one in planned["tables"]] == ["orders", "sales.orders"]


def test_a_dropped_table_does_not_stop_the_partitioning_of_all(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Tables").mkdir()
    document = {"policy": {"PartitionKeys": []}, "table_id": "dropped"}
    append_policy(Storage(tmp_path), TableName(None, "dropped"), document)
    monkeypatch.setattr(Lake, "spark", None)
    shown = run("partition", "run", tmp_path, "*", "--dry-run", "--json").json
    assert shown["rows"] == []


def test_an_empty_list_of_columns_is_no_order(run: Run, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "Tables" / "orders", rows_of({"id": [1]}))
    shown = run("optimize", tmp_path, "orders", "--zorder-by", "", status=2)
    assert "No column to Z-order by is given." in " ".join(shown.err.split())


@pytest.mark.parametrize("command", ["ledger", "quarantine"])
def test_a_misspelled_table_is_not_empty(run: Run, tmp_path: Path, command: str) -> None:
    Lake(tmp_path).publisher("orders").insert([{"id": 1}])
    shown = run(command, tmp_path, "ordres", status=1)
    assert "There is no table ordres in the lake" in " ".join(shown.err.split())


@cache
def commands() -> dict[str, Any]:
    """Return all commands by name, including those of groups."""
    found = {}
    for name, command in cli.command().commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{name} {verb}": c for verb, c in inner.items()} if inner else {name: command}
    return found


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def everything_below(root: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_noun_has_its_verbs() -> None:
    found = commands()
    for noun, verbs in VERBS.items():
        assert {name.split()[1] for name in found if name.startswith(f"{noun} ")} == verbs


def test_the_docs_list_every_verb() -> None:
    text = (PROJECT / "docs" / "commands.md").read_text(encoding="utf-8")
    for noun, verbs in VERBS.items():
        listed = re.findall(rf"^\| `{noun} ([a-z\\|-]+) ", text, re.MULTILINE)
        assert {verb for cell in listed for verb in cell.split("\\|")} == verbs


def test_what_loses_nothing_acts_and_what_deletes_only_says() -> None:
    found = commands()
    assert {n for n, c in found.items() if "--dry-run" in options(c)} == set(ACT)
    assert {n for n, c in found.items() if "--apply" in options(c)} == set(SAY)


def test_the_commands_of_the_pages_have_valid_arguments() -> None:
    """Each line of a shell block is parsed as a command, without running it."""
    pages = ["../README", *(str(p.relative_to(DOCS).with_suffix("")) for p in DOCS.rglob("*.md"))]
    text = "\n".join(block for page in pages for block in blocks(page, "sh"))
    lines = re.findall(r"^\./mirrorlake .*", text.replace("\\\n", " "), re.MULTILINE)
    assert len(lines) > 50
    for line in lines:
        _, *words = shlex.split(line, comments=True)
        depth = 1 + (words[0] in VERBS)
        commands()[" ".join(words[:depth])].make_context(line, words[depth:])


@pytest.mark.parametrize("name", sorted(commands()))
def test_each_command_has_help_of_its_own(name: str, run: Run) -> None:
    shown = " ".join(run(*name.split(), "--help").out.split())
    assert f"Usage: ./mirrorlake {name} " in shown
    for option in options(commands()[name]):
        assert option in shown or not option.startswith("--")
    text = commands()[name].help
    assert text
    assert text.splitlines()[0].endswith(".")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "No such command 'nonsense'"),
        ("frame nonsense", "No such command 'nonsense'"),
        ("frame create ROOT m --where x", "No such option: --where"),
        ("frame create ROOT", "Missing argument 'MODEL'"),
        ("frame list ROOT m", "unexpected extra argument"),
        ("partition show ROOT t policy.json", "unexpected extra argument"),
        ("partition run ROOT t --hot 3d", "No such option: --hot"),
        ("partition alter-merge ROOT t p.json --guard", "No such option: --guard"),
        ("partition set ROOT * p.json", "A single table is needed"),
        ("rows enable ROOT t --apply", "No such option: --apply"),
        ("rows drop ROOT t --dry-run", "No such option: --dry-run"),
        ("view create ROOT v", "Missing option '--sql'"),
        ("view list ROOT v", "unexpected extra argument"),
        ("view refresh ROOT v --full --incremental", "exclude each other"),
        ("mirror ROOT --watch --dry-run", "exclude each other"),
        ("mirror ROOT --on-error never", "never"),
        ("status /no/such/lake", "/no/such/lake is not a lake: the folder does not exist."),
        ("publish ROOT ../up f.parquet", "up"),
        ("run /no/such/plan.yaml", "/no/such/plan.yaml"),
    ],
)
def test_wrong_use_is_status_2_and_says_why(
    line: str, message: str, run: Run, tmp_path: Path
) -> None:
    arguments = [str(tmp_path) if word == "ROOT" else word for word in line.split()]
    plain = run(*arguments, status=2)
    assert plain.out == ""
    assert message in re.sub(r"[\s│]+", " ", plain.err)
    if line.startswith(("run", "nonsense")) or "--json" in options(commands_of(line)):
        error = run(*arguments, "--json", status=2).json["error"]
        assert set(error) == {"message", "hint", "file", "row", "column"}
        assert message in error["message"]


def commands_of(line: str) -> Any:
    found = commands()
    first, second = [*line.split(), ""][:2]
    return found.get(f"{first} {second}") or found.get(first) or found["frame list"]


def test_a_folder_that_can_be_no_table_hides_no_other_one(run: Run, tmp_path: Path) -> None:
    for name in ("bad:name", "stock"):
        (tmp_path / "Files" / "LandingZone" / name).mkdir(parents=True)
    for command in ("status", "monitor"):
        told = run(command, tmp_path, "--json", status=1).json["tables"]
        assert [one["state"] for one in told] == ["Failed", "Initialized"]
    found = Lake(tmp_path).status()
    assert [problem.where for problem in found.problems] == ["bad:name"]
    zone = explore(Lake(tmp_path)).open("Zone")
    assert zone.message.value == ""


def test_status_fails_if_a_source_has_stopped_a_table(run: Run, tmp_path: Path) -> None:
    lake, drops = tmp_path / "lake", tmp_path / "drops" / "orders"
    drops.mkdir(parents=True)
    (drops / "1.csv").write_text("id;n\n1;2\n")  # separated by semicolons
    run("source", "csv", lake, drops.parent, "--once", status=1)
    assert "must separate its values" in run("status", lake, status=1).out


def test_a_folder_that_does_not_exist_has_a_near_name(run: Run, tmp_path: Path) -> None:
    Lake(tmp_path).publisher("orders").insert([{"id": 1}])
    for command in ("mirror", "lint", "mirror --dry-run"):
        shown = run(*command.split(), tmp_path, "--table", "ordrs", "--json", status=1)
        assert (
            shown.json["error"]["hint"] == "did you mean orders? If not, publish the table first."
        )
    far = run("lint", tmp_path, "--table", "x", "--json", status=1).json
    assert far["error"]["hint"] == "publish the table first."


def test_defaults_are_set_before_the_first_publication(run: Run, tmp_path: Path) -> None:
    new, source = tmp_path / "new", tmp_path / "stock.csv"
    assert "is not a lake" in run("defaults", new, status=2).err
    assert not new.exists()
    assert run("defaults", new, "--safe-names", "--json").json["safe_names"]
    source.write_text("unit price\n2\n")
    batch = run("publish", new, "stock", source, "--json").json["published"][0]
    assert batch["columns"] == {"unit_price": "long"}


def test_replay_names_its_option(run: Run, tmp_path: Path) -> None:
    Lake(tmp_path).publisher("orders").insert([{"id": 1}])
    assert "(--as-is)" in run("replay", tmp_path, "orders", "--from", 1, status=2).err


def test_reconcile_names_the_tables_without_a_manifest(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lake, "spark", None)  # nothing is compared
    for name in ("items", "stock"):
        (tmp_path / "Files" / "LandingZone" / name).mkdir(parents=True)
        write_deltalake(tmp_path / "Tables" / name, rows_of({"id": [1]}))
    write_deltalake(tmp_path / "Tables" / "by_sql", rows_of({"id": [1]}))
    told = run("reconcile", tmp_path).out.splitlines()
    assert told[0].startswith("Not compared: items, stock. Write a manifest")
    assert told[1] == "0 rows compared, 0 differences, 2 tables without a manifest"
    found = run("reconcile", tmp_path, "--json").json
    assert found == {"findings": [], "without_manifest": ["items", "stock"]}


def test_a_problem_is_status_1_with_its_place(run: Run, tmp_path: Path) -> None:
    root, bad = tmp_path / "lake", tmp_path / "bad.csv"
    bad.write_text("id\n1\n")
    (tmp_path / "no.parquet").write_bytes(b"no")
    refused = run("publish", root, "t", tmp_path / "no.parquet", "--json", status=1)
    assert refused.json["error"]["file"] in (None, "no.parquet")
    assert "mirrorlake: " in refused.err
    run("publish", root, "t", bad)
    missing = run("history", root, "x", "--json", status=1)
    assert missing.json["error"] == {
        "message": "There is no table x in the lake.",
        "hint": "The lake has no tables: publish a file unless there is one, and run `mirror`.",
        "file": None,
        "row": None,
        "column": None,
    }


def test_publish_with_wrong_keys_is_corrected_by_the_next_command(run: Run, tmp_path: Path) -> None:
    root, load = tmp_path / "lake", tmp_path / "load.csv"
    load.write_text("id,v\n1,a\n")
    refused = run("publish", root, "t", load, "--keys", "nokey", status=1)
    assert "Key column 'nokey' is missing." in refused.err
    run("publish", root, "t", load, "--keys", "id")
    assert Lake(root).publisher("t").keys == ("id",)
    run("publish", root, "t", load, "--keys", "v", status=1)


def test_publish_warns_of_rows_that_may_be_there_twice(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, load = tmp_path / "lake", tmp_path / "load.csv"
    load.write_text("id,v\n1,a\n")
    assert "marker" not in run("publish", root, "t", load, "--keys", "id").err
    again = run("publish", root, "t", load, "--json")
    assert "pass marker='upsert' (--marker upsert)" in caplog.text
    assert "marker" not in again.err  # the hint is given once
    assert "the rows of load.csv have no marker" in again.json["published"][0]["warning"]
    assert "marker" not in run("publish", root, "t", load, "--marker", "upsert").err
    (found,) = run("lint", root, "--json").json["findings"]
    assert (found["rule"], found["file"]) == ("key-repeated", "00000000000000000002.parquet")
    load.write_text("id,w\n1,a\n")
    misspelled = run("publish", root, "t", load, "--marker", "update", "--json")
    (batch,) = misspelled.json["published"]
    assert batch["warning"].startswith(
        "The update adds the column 'w' to t. Column 'v' is missing;"
    )
    assert "--marker" not in misspelled.err


def test_publish_prints_the_types_of_the_columns(run: Run, tmp_path: Path) -> None:
    root, load = tmp_path / "lake", tmp_path / "load.csv"
    load.write_text("id,zip,price\n1,01234,5\n")
    said = run("publish", root, "t", load)
    assert "columns of load.csv: id long, zip string, price long\n" in said.err
    (said,) = run("publish", root, "t", load, "--json").json["published"]
    assert said["columns"] == {"id": "long", "zip": "string", "price": "long"}


def test_publish_takes_declared_and_wider_types(run: Run, tmp_path: Path) -> None:
    root, load = tmp_path / "lake", tmp_path / "load.csv"
    load.write_text("id,zip,price\n1,1234,5\n")
    types = ("--types", "zip=string,price=decimal(18, 2)", "--types", "id=int")
    (said,) = run("publish", root, "t", load, *types, "--json").json["published"]
    assert said["columns"] == {"id": "integer", "zip": "string", "price": "decimal(18,2)"}
    load.write_text(f"id,zip,price\n{2**40},1234,5.125\n")
    refused = run("publish", root, "t", load, "--json", status=1).json["error"]
    assert (refused["row"], refused["column"]) == (1, "id")
    assert "2 columns" in refused["message"]
    assert "--widen" in refused["hint"]
    (said,) = run("publish", root, "t", load, "--widen", "--json").json["published"]
    assert said["columns"] == {"id": "long", "zip": "string", "price": "decimal(28,8)"}
    for wrong in ("price", "=long", "price=", "price=money"):
        run("publish", root, "t", load, "--types", wrong, status=2)


def test_a_dry_run_of_publish_writes_nothing(run: Run, tmp_path: Path) -> None:
    root, load = tmp_path / "lake", tmp_path / "load.csv"
    load.write_text("id,v\n1,a\n2,b\n")
    said = run("publish", root, "t", load, "--keys", "id", "--dry-run")
    assert said.out == "t: 2 rows would be published: a dry run\n"
    assert everything_below(root) == {}
    run("publish", root, "t", load, "--keys", "id")
    before = everything_below(root)
    (said,) = run("publish", root, "t", load, "--dry-run", "--json").json["published"]
    assert (said["file"], said["rows"]) == (None, 2)
    other = run("publish", root, "t", load, "--keys", "v", "--dry-run", "--json", status=1)
    assert "can't become" in other.json["error"]["message"]
    misfit = tmp_path / "misfit.parquet"
    Lake(tmp_path / "other").publisher("t").write([{"id": "text", "v": "c"}])
    (made,) = (tmp_path / "other").rglob("*.parquet")
    made.rename(misfit)
    refused = run("publish", root, "t", misfit, "--dry-run", "--json", status=1).json["error"]
    assert refused["column"] == "id"
    assert everything_below(root) == before


def test_a_dry_run_of_the_mirror_says_which_files_would_be_applied(
    run: Run, storage: Storage
) -> None:
    zone = Zone(storage)
    zone.metadata(KEYED)
    zone.put(1)
    zone.put(2, {"id": [2], MARKER: [4]})
    zone.put(4)
    zone.write("u/00000000000000000001.csv", "id\n1\n2\n")
    zone.write("w/00000000000000000001.parquet", b"")
    before = everything_below(zone.local)
    document = run("mirror", storage.root, "--dry-run", "--json", status=1).json
    t, u, w = document["tables"]
    assert [name[-9:-8] for name in t["files"]] == ["1", "2"]
    assert (t["rows_to_apply"], t["waiting_for"], t["error"]) == (2, 3, None)
    assert (u["files"], u["rows_to_apply"]) == (["00000000000000000001.csv"], 2)
    assert (w["files"], w["error"]["file"]) == ([], "00000000000000000001.parquet")
    shown = run("mirror", storage.root, "--dry-run", status=1).out
    assert "w: The file has zero bytes." in shown
    passed = run("mirror", storage.root, "--dry-run", "--on-error", "skip-file")
    assert "3 files with 4 rows would be applied (dry run)" in passed.out
    (only,) = run("mirror", storage.root, "--table", "u", "--dry-run", "--json").json["tables"]
    assert only | {"lag_seconds": 0} == u | {"lag_seconds": 0}
    run("mirror", storage.root, "--table", "x", "--dry-run", status=1)
    assert everything_below(zone.local) == before
    run("pause", storage.root, "u")
    (only,) = run("mirror", storage.root, "--table", "u", "--dry-run", "--json").json["tables"]
    assert (only["state"], only["files"]) == ("Stopped", [])


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_dry_run_of_an_operation_changes_nothing(verb: str, run: Run, storage: Storage) -> None:
    zone = Zone(storage)
    zone.put(1)
    if verb == "resume":
        run("pause", storage.root, "t")
    before = everything_below(zone.local)
    said = run(verb, storage.root, "t", "--dry-run", "--json").json
    assert (said["verb"], said["table"], said["applied"]) == (verb, "t", False)
    assert everything_below(zone.local) == before
    assert "a dry run" in run(verb, storage.root, "t", "--dry-run").out
    assert "dry run" not in run(verb, storage.root, "t").out
    assert everything_below(zone.local) != before


def test_an_interrupted_forget_says_how_to_complete_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    Lake(tmp_path).publisher("t", keys=["id"]).upsert([{"id": 1}])
    monkeypatch.setattr(mirror_forget, "key_columns", lambda *_: {"id": "long"})  # needs a table
    monkeypatch.setattr(Lake, "spark", None)
    monkeypatch.setattr(Lake, "forget", interrupted)
    shown = " ".join(run("forget", tmp_path, "t", "id=1", "--apply", status=130).err.split())
    assert "forget was interrupted. Hint: run the same command again" in shown
    assert shown.endswith("If the table stays paused, run `resume`.")
    assert "Hint" not in run("forget", tmp_path, "t", "id=1", status=130).err


def test_the_demo_ends_with_the_next_steps(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = RunSummary("demo", "runs/1", "", (), "", {}, "1", 0)
    monkeypatch.setattr(plan_runs, "run_plan", lambda *_, **__: summary)  # needs Spark
    *_, lesson, own_data = run("demo").out.splitlines()
    assert "learn/01_publish.ipynb" in lesson
    page = re.search(r"docs/\S+\.md", own_data)
    assert page is not None
    assert (PROJECT / page[0]).is_file()


def test_skip_says_that_a_file_is_already_applied(run: Run, storage: Storage) -> None:
    zone = Zone(storage)
    zone.put(1)
    zone.mirrored({"id": "long"}, last=1)
    shown = " ".join(run("skip", storage.root, "t", 1, "--apply").out.split())
    assert "file 1 is already applied; only a reseed skips it" in shown
    assert "already" not in run("skip", storage.root, "t", 2).out
    assert run("skip", storage.root, "t", file_name(2)).out == run("skip", storage.root, "t", 2).out
    for file in ("0", "a.csv"):
        assert (
            f"t has no numbered file {file}." in run("skip", storage.root, "t", file, status=2).err
        )


def test_a_file_is_passed_over_only_when_told(run: Run, storage: Storage) -> None:
    zone = Zone(storage)
    zone.put(2)
    before = everything_below(zone.local)
    assert "--apply does it" in run("skip", storage.root, "t", 1).out
    assert everything_below(zone.local) == before
    assert run("status", storage.root, "--json").json["tables"][0]["waiting_for"] == 1
    assert run("skip", storage.root, "t", 1, "--apply", "--json").json["applied"]
    assert run("status", storage.root, "--json").json["tables"][0]["waiting_for"] is None


def test_a_reseed_and_an_undrop_are_only_said(run: Run, storage: Storage, tmp_path: Path) -> None:
    zone = Zone(storage)
    zone.metadata(KEYED)
    zone.put(1)
    load = tmp_path / "load.csv"
    load.write_text("id,item\n1,a\n")
    before = everything_below(zone.local)
    assert "the rows of 1 kept file" in run("reseed", storage.root, "t").out
    assert "the rows of 1 new file" in run("reseed", storage.root, "t", load).out
    assert "no dropped table" in run("undrop", storage.root, "t", "--dry-run", status=1).err
    assert "was not applied" in run("replay", storage.root, "t", "--from", 1, status=1).err
    assert everything_below(zone.local) == before
    shown = " ".join(run("reseed", storage.root, "t", load).out.split())
    assert "in one commit; 1 waiting file would be set aside" in shown
    assert "set aside" not in run("reseed", storage.root, "t").out
    assert run("reseed", storage.root, "t", load, "--apply", "--json").json["applied"]
    assert everything_below(zone.local) != before


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(28, "No space left on device", "/x/f"), "No space left on device: '/x/f'"),
        (
            obstore_errors.GenericError("Generic S3 error: no answer\n\nDebug source: …"),
            "no answer",
        ),
    ],
)
def test_an_error_of_a_disk_or_store_is_one_line_with_a_hint(
    run: Run, storage: Storage, monkeypatch: pytest.MonkeyPatch, error: Exception, shown: str
) -> None:
    Zone(storage).put(1)

    def fail(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr("mirrorlake.mirror.operations.pause", fail)
    done = run("pause", storage.root, "t", "--json", status=1)
    assert shown in done.json["error"]["message"]
    assert "credentials" in done.json["error"]["hint"]
    assert len(done.err.strip().splitlines()) == 1
    monkeypatch.setattr("mirrorlake.mirror.operations.pause", lambda *_args, **_options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("pause", storage.root, "t")


def test_a_mistyped_table_is_neither_reseeded_nor_replayed(
    run: Run, storage: Storage, tmp_path: Path
) -> None:
    zone = Zone(storage)
    zone.put(1)
    load = tmp_path / "load.csv"
    load.write_text("id,item\n1,a\n")
    write_deltalake(Path(storage.root) / "Tables/view", rows_of({"id": [1]}))
    before = everything_below(zone.local)
    for command in (["reseed", "--apply"], ["reseed", load, "--apply"], ["replay", "--from", 1]):
        name, *options = command
        assert "did you mean t?" in run(name, storage.root, "tt", *options, status=1).err
        refused = run(name, storage.root, "view", *options, status=1).err
        assert "The landing zone has no folder for the table view." in refused
    assert everything_below(zone.local) == before


def test_frames_and_views_are_listed_without_spark(run: Run, storage: Storage) -> None:
    Zone(storage).put(1)
    assert run("frame", "list", storage.root, "--json").json == {"frames": []}
    assert run("view", "list", storage.root, "--json").json == {"views": []}
