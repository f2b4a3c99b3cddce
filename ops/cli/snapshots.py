"""`snapshot`, `snapshots list`, `snapshots gc`: copies of committed store versions in object storage."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json, PipelineName
from ops.cli.output import answer, progress, say, table

group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="List and collect snapshots.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog="[bold]rollforward snapshot flights[/]\n\nThe store servers also take them by themselves: every "
        "snapshot_interval_s, after snapshot_changelog_records, and before a planned stop."
    )(snapshot)
    group.command("list", epilog="[bold]rollforward snapshots list flights --json[/]")(list_)
    group.command(
        "gc",
        epilog="[bold]rollforward snapshots gc flights --dry-run[/]\n\nKept are the newest snapshot_keep of each task, "
        "all younger than snapshot_retention_s, and every file younger than snapshot_minimum_age_s.\n\n"
        "[bold]rollforward snapshots gc flights --dropped[/] frees what dropped pipelines of that name have left.",
    )(gc)
    app.add_typer(group, name="snapshots")


def snapshot(pipeline: PipelineName, json: Json = False) -> None:
    """Take a snapshot of every task's committed version, while the pipeline goes on."""
    from ops.snapshots import take_all

    with registry_of(settings_of_here()) as registry, progress(f"Snapshot of {pipeline}") as tell:
        taken = take_all(registry, pipeline, tell)
    if json:
        answer({"pipeline": pipeline, "tasks": taken})
        return
    if not taken:
        say("Nothing is committed yet, so there is nothing to take a snapshot of.")
        return
    table(
        ("task", "batch", "new", "bytes uploaded", "bytes in all", "files", "seconds"),
        [
            (
                *(t["task"], t["batch"], t["written"], t.get("uploaded_bytes"), t.get("referenced_bytes")),
                *(t.get("files"), t.get("seconds")),
            )
            for t in taken
        ],
    )


def list_(pipeline: PipelineName, json: Json = False) -> None:
    """Show every snapshot of a pipeline, by task, the oldest first."""
    from ops.snapshots import list_all

    settings = settings_of_here()
    with registry_of(settings) as registry:
        found = list_all(registry.pipeline(pipeline), settings)
    if json:
        answer({"pipeline": pipeline, "snapshots": found})
        return
    if not found:
        say(f"There is no snapshot: rollforward snapshot {pipeline}")
        return
    table(
        ("task", "batch", "taken", "bytes", "bytes new in it", "files", "problem"),
        [
            (
                *(s["task"], s.get("batch"), _time(s.get("taken_at_ms")), s.get("bytes"), s.get("new_bytes")),
                *(s.get("files"), s["problem"]),
            )
            for s in found
        ],
    )


def gc(
    pipeline: PipelineName,
    dropped: Annotated[
        bool,
        typer.Option("--dropped", help="Collect instead what dropped pipelines of this name have left, all of it."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    json: Json = False,
) -> None:
    """Delete snapshots and files that nothing needs any more. Safe beside a running pipeline and a recovery."""
    from ops.snapshots import collect_all, collect_dropped

    settings = settings_of_here()
    with registry_of(settings) as registry, progress(f"Collecting snapshots of {pipeline}") as tell:
        if dropped:
            collected = collect_dropped(registry, pipeline, settings, tell, dry_run=dry_run)
        else:
            collected = collect_all(registry.pipeline(pipeline), settings, tell, dry_run=dry_run)
    if json:
        answer(
            {"pipeline": pipeline, "dropped": dropped, "dry_run": dry_run, "tasks": [c.to_json() for c in collected]}
        )
        return
    table(
        ("prefix", "snapshots kept", "snapshots deleted", "files deleted", "bytes freed", "uploads aborted"),
        [
            (
                c.prefix,
                len(c.snapshots_kept),
                len(c.snapshots_deleted),
                c.files_deleted,
                c.bytes_freed,
                c.uploads_aborted,
            )
            for c in collected
        ],
    )
    freed = sum(c.bytes_freed for c in collected)
    say(f"{'Would free' if dry_run else 'Freed'} {freed:,} bytes.")


def _time(time_ms: int | None) -> str | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
