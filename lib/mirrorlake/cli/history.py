"""Commands on tables over time: sql, history, changes, archive, dimension, …, and `frame …`.

A frame is the versions of tables that a model's readers see.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

import typer

from mirrorlake.cli import app, open_lake, open_table, verbs
from mirrorlake.cli.options import Apply, DryRun, Json, Keys, Limit, Root, Table
from mirrorlake.cli.printing import DRY_RUN, NOT_APPLIED, facts_of, print_rows, progress, tell
from mirrorlake.names import split_names
from mirrorlake.results import TextTable

Outside = Literal["error", "clip"]  # for a start or end that the feed does not hold
END_HELP = "a version, or yyyy-MM-dd[ HH:mm:ss[.SSS]]"


@app.command()
def sql(
    root: Root,
    query: Annotated[str, typer.Argument(help='For example "SELECT * FROM flights@v2".')],
    as_json: Json = False,
    limit: Limit = 50,
) -> None:
    """Query the lake's tables, at any version or timestamp."""
    print_rows(open_lake(root).sql(query), as_json=as_json, limit=limit)


@app.command()
def history(
    root: Root,
    table: Table,
    as_json: Json = False,
    limit: Annotated[int, typer.Option(help="Most versions to show.", min=1)] = 20,
) -> None:
    """Show a table's versions, newest first, and how far back it can be read."""
    from mirrorlake.delta.commits import CommitLog
    from mirrorlake.history.versions import find_readable_range

    lake = open_lake(root)
    name = lake.table(table).name
    log = CommitLog(lake.storage, name.table_path)
    found = log.read(log.newest(), limit)
    more = f"… and older ones; --limit {limit} shows the newest {limit}." * found.more
    reach = "" if as_json else find_readable_range(lake.storage, name).shown()
    tell(as_json, found.as_dict(), found.shown(), more, reach)


@app.command()
def diff(
    root: Root,
    table: Table,
    before: Annotated[int, typer.Option("--from", help="The older version.", min=0)],
    after: Annotated[
        int | None, typer.Option("--to", help="The newer version; by default the newest.", min=0)
    ] = None,
    match: Annotated[
        str | None, typer.Option(help="How rows are matched: row-id, key or row.")
    ] = None,
    keys: Annotated[str, typer.Option(help="Columns to match by, separated by commas.")] = "",
    as_json: Json = False,
    limit: Limit = 50,
) -> None:
    """Show what changed between two versions, one row for each change."""
    changes = open_table(root, table).diff(before, after, match=match, keys=split_names(keys))
    print_rows(changes, as_json=as_json, limit=limit)


@app.command()
def restore(
    root: Root,
    table: Table,
    version: Annotated[int, typer.Option(help="The version to restore.", min=0)],
    apply: Apply = False,
    as_json: Json = False,
) -> None:
    """Restore a table to a version, by a new commit."""
    with progress("restoring …"):
        done = open_table(root, table).restore(version, apply=apply)
    tell(as_json, facts_of(done), done.shown(), NOT_APPLIED * (not apply))


@app.command()
def changes(
    root: Root,
    table: Table,
    start: Annotated[str, typer.Option("--from", help=f"Start: {END_HELP}.")],
    end: Annotated[str | None, typer.Option("--to", help=f"End: {END_HELP}.")] = None,
    net: Annotated[bool, typer.Option("--net", help="Only the net change of each key.")] = False,
    keys: Keys = "",
    across_gaps: Annotated[
        bool, typer.Option("--across-gaps", help="Compare versions where the feed has gaps.")
    ] = False,
    beyond: Annotated[
        Outside | None,
        typer.Option(help="If the start or end is after the newest version.", show_default=False),
    ] = None,
    before: Annotated[Outside, typer.Option(help="If the start is before the feed's.")] = "error",
    as_json: Json = False,
    limit: Limit = 50,
) -> None:
    """Show what changed in a table from one version to another, both included."""
    from mirrorlake.feed.ranges import in_order

    found = open_table(root, table)
    chosen = split_names(keys) or None
    read = partial(found.changes.net, keys=chosen) if net else found.changes.read
    rows = read(start, end, across_gaps=across_gaps, beyond_latest=beyond, before_feed=before)
    print_rows(in_order(rows, chosen or found.keys), as_json=as_json, limit=limit)


@app.command()
def doctor(
    root: Root,
    table: Table,
    start: Annotated[int | None, typer.Option("--from", help="First version.")] = None,
    end: Annotated[int | None, typer.Option("--to", help="Last version.")] = None,
    as_json: Json = False,
) -> None:
    """Diagnose a table's change feed: what prevents reading it."""
    with progress("looking at the log and its files …"):
        found = open_table(root, table).changes.diagnose(start, end)
    tell(as_json, found.as_dict(), found.shown(), found, failed=found.blocking)


@app.command()
def archive(
    root: Root,
    table: Table,
    into: Annotated[
        str, typer.Option(help="The archive; by default TABLE_history.", show_default=False)
    ] = "",
    start: Annotated[
        int | None,
        typer.Option(
            help="First version of a new archive; by default all that the feed has.", min=0
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Append the new changes of a table's change feed to a permanent history table."""
    with progress("archiving …"):
        done = open_table(root, table).archive(into, start=start, dry_run=dry_run)
    tell(as_json, done.as_dict(), done, DRY_RUN * dry_run, failed=done.why_not)


@app.command()
def dimension(
    root: Root,
    table: Table,
    into: Annotated[
        str, typer.Option(help="The dimension; by default dim_TABLE.", show_default=False)
    ] = "",
    stored_as: Annotated[
        int,
        typer.Option(
            help="1: the latest row of each key; 2: all rows, with periods.", min=1, max=2
        ),
    ] = 1,
    keys: Keys = "",
    from_snapshot: Annotated[
        bool, typer.Option("--from-snapshot", help="Compare the newest version; needs no feed.")
    ] = False,
    sequence_by: Annotated[
        str | None,
        typer.Option(help="The table's rows are changes, ordered by this column or expression."),
    ] = None,
    ignore_null_updates: Annotated[
        bool, typer.Option("--ignore-null-updates", help="A NULL leaves the column as it is.")
    ] = False,
    apply_as_deletes: Annotated[
        str | None, typer.Option(help="Condition for changes that delete their key.")
    ] = None,
    apply_as_truncates: Annotated[
        str | None, typer.Option(help="Condition for changes that remove all rows before them.")
    ] = None,
    columns: Annotated[str, typer.Option(help="Only these columns, keys included.")] = "",
    except_columns: Annotated[str, typer.Option(help="All columns but these.")] = "",
    track_history_columns: Annotated[
        str, typer.Option("--track-history", help="Only a change of these columns starts a period.")
    ] = "",
    track_history_except_columns: Annotated[
        str,
        typer.Option("--track-history-except", help="A change of these columns starts no period."),
    ] = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Bring a slowly changing dimension up to date with a table."""
    with progress("updating the dimension …"):
        done = open_table(root, table).dimension(
            into,
            stored_as=2 if stored_as == 2 else 1,
            keys=split_names(keys),
            from_snapshot=from_snapshot,
            sequence_by=sequence_by,
            ignore_null_updates=ignore_null_updates,
            apply_as_deletes=apply_as_deletes,
            apply_as_truncates=apply_as_truncates,
            columns=split_names(columns),
            except_columns=split_names(except_columns),
            track_history_columns=split_names(track_history_columns),
            track_history_except_columns=split_names(track_history_except_columns),
            dry_run=dry_run,
        )
    tell(as_json, done.as_dict(), done, DRY_RUN * dry_run, failed=done.why_not)


frame = verbs("frame", "Frames: the versions of tables that a model's readers see.")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")]


@frame.command()
def create(
    root: Root,
    model: Model,
    tables: Annotated[
        str, typer.Option(help="Tables to frame, separated by commas; by default all.")
    ] = "",
    expires_in: Annotated[
        float, typer.Option(help="Days until the frame expires; 0: never.", min=0)
    ] = 30.0,
    owner: Annotated[str | None, typer.Option(help="Whom to ask about the frame.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Frame the newest versions of some tables, consistent at one timestamp."""
    lake = open_lake(root)
    with progress("framing …"):
        done = lake.frames.create(
            model, lake.tables(tables), owner=owner, expires_in=expires_in or None, dry_run=dry_run
        )
    tell(as_json, done.as_dict(), done, DRY_RUN * dry_run)


@frame.command("list")
def list_(root: Root, as_json: Json = False) -> None:
    """List the frame of each model."""
    found = open_lake(root).frames.list()
    rows = []
    for one in found:
        tables = ", ".join(f"{framed.table}@v{framed.version}" for framed in one.tables)
        expires = one.expires or "never"
        rows.append((one.model, one.number, one.state, one.owner, expires, tables))
    columns = ("model", "frame", "state", "owner", "expires", "tables")
    tell(as_json, {"frames": [one.as_dict() for one in found]}, TextTable(columns, tuple(rows)))


@frame.command()
def show(
    root: Root,
    model: Model,
    delete_from: Annotated[
        str | None, typer.Option(help="Show what a DELETE from this table would change.")
    ] = None,
    where: Annotated[str, typer.Option(help="The predicate of that DELETE.")] = "true",
    as_json: Json = False,
) -> None:
    """Show what has changed since the frame, and what the next one would reload."""
    lake = open_lake(root)
    delete = (lake.table(delete_from).name, where) if delete_from else None
    with progress("comparing …"):
        lines = lake.frames.show(model, delete=delete)
    tell(as_json, {"tables": [asdict(line) for line in lines]}, *(line.shown() for line in lines))


@frame.command()
def release(root: Root, model: Model, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Release the model's frame; its readers get an error until it is framed again."""
    done = open_lake(root).frames.release(model, dry_run=dry_run)
    tell(as_json, done.as_dict(), done, DRY_RUN * dry_run)
