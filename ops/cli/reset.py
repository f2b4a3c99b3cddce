"""`reset`: empty a stopped pipeline's stores and begin at other offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json, PipelineName
from ops.cli.output import answer, progress, say, table
from ops.cli.past import time_ms

if TYPE_CHECKING:
    from pipelines.reset import Target, WasReset


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward stop flights && rollforward reset flights --to earliest --dry-run[/]\n\n"
        "[bold]rollforward reset flights --at 2026-03-01T00:00:00[/]\n\n"
        "[bold]rollforward reset flights --query route_days --offset 0=1200 --offset 1=1180[/]\n\n"
        "Killed in the middle, nothing of a query or all of it is done: run it again."
    )(reset)


def reset(
    pipeline: PipelineName,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="earliest|latest|history", help="An end of the topic, or where its archive begins."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="The first records of this time or later: 2026-03-01T12:00:00 (UTC), or -90 seconds from now.",
        ),
    ] = None,
    offset: Annotated[
        list[str] | None,
        typer.Option("--offset", metavar="PARTITION=OFFSET", help="Of one partition; may be repeated."),
    ] = None,
    query: Annotated[str | None, typer.Option("--query", help="Only this query of the pipeline.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Empty the stores of a stopped pipeline, and let its input begin elsewhere. Times are 2026-03-01T12:00:00 (UTC) or -90.

    Every key of the store gets a tombstone in the result topic, so nothing stale is left there.
    """
    from ops.reset import reset_all

    target = _target(to, at, offset or [])
    settings = settings_of_here()
    with registry_of(settings) as registry:
        looked = reset_all(registry, settings, pipeline, query, target, dry_run=True)
        if not dry_run:
            _confirm(pipeline, looked, yes=yes, json=json)
            with progress(f"Resetting {pipeline}") as tell:
                looked = reset_all(registry, settings, pipeline, query, target, dry_run=False, tell=tell)
    if json:
        answer({"pipeline": pipeline, "dry_run": dry_run, "queries": [one.to_json() for one in looked]})
        return
    show(looked)
    say("Nothing was changed." if dry_run else f"It begins there: rollforward start {pipeline}")


def _target(to: str | None, at: str | None, offsets: list[str]) -> Target:
    from pipelines.reset import EARLIEST, HISTORY, LATEST, Target

    if sum((to is not None, at is not None, bool(offsets))) != 1:
        raise typer.BadParameter("give one of --to, --at and --offset")
    if to not in (None, EARLIEST, LATEST, HISTORY):
        raise typer.BadParameter(f"--to is {EARLIEST}, {LATEST} or {HISTORY}, not {to}")
    try:
        found = {int(partition): int(value) for partition, _, value in (text.partition("=") for text in offsets)}
    except ValueError:
        raise typer.BadParameter(f"not PARTITION=OFFSET: {', '.join(offsets)}") from None
    return Target(to, time_ms(at), found or None)


def _confirm(pipeline: str, looked: list[WasReset], *, yes: bool, json: bool) -> None:
    if yes:
        return
    if json:
        raise typer.BadParameter("with --json nobody can be asked: add --yes")
    show(looked)
    typer.confirm(f"Empty the stores of {pipeline} and begin there?", abort=True)


def show(done: list[WasReset]) -> None:
    """The table of what was or would be reset."""
    table(
        ("query", "now batch", "begins at", "offsets again", "offsets skipped", "keys deleted"),
        [(o.query, o.as_batch, _places(o.offsets), o.again, o.skipped, o.keys_deleted) for o in done],
    )


def _places(offsets: dict[str, int]) -> str:
    return " ".join(f"{partition}:{offset}" for partition, offset in offsets.items())
