"""`backfill`: compute a period of a result again, and put right what differs."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json, PipelineName
from ops.cli.output import answer, progress, say, table
from ops.cli.past import time_ms


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward backfill flights --from 2013-01-01 --to 2013-01-08 --dry-run[/]\n\n"
        "[bold]rollforward backfill shop --query hourly --from 2026-03-01T06:00 --to 2026-03-01T09:00[/]\n\n"
        "The same from Dagster: materialize partitions of the asset <table>_by_day or <table>_by_hour."
    )(backfill)


def backfill(
    pipeline: PipelineName,
    since: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Begin, included: 2026-03-01 or 2026-03-01T06:00 (UTC).")
    ],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="End, not included.")],
    query: Annotated[
        str | None, typer.Option("--query", help="Only this query; default: all that are grouped by time.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only compute and compare with what the stream has.")
    ] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for each query.")] = 3600.0,
    json: Json = False,
) -> None:
    """Compute a period of every result that is grouped by time again, from the source topic, while the pipeline runs.

    The driver does it as one batch between two others. Keys that differ from the stream's own result are put right in the
    store and the result topic, late records included; equal ones are left alone, so doing it twice changes nothing.
    """
    from ops.backfill import backfill as run
    from ops.backfill import periods_of

    bounds = time_ms(since), time_ms(until)
    assert bounds[0] is not None
    assert bounds[1] is not None
    with registry_of(settings_of_here()) as registry, progress(f"Backfill of {pipeline}") as tell:
        done = [
            run(
                registry,
                pipeline,
                one,
                from_ms=bounds[0],
                to_ms=bounds[1],
                dry_run=dry_run,
                timeout_s=timeout_s,
                tell=tell,
            )
            for one in periods_of(registry, pipeline, query)
        ]
    if json:
        answer({"pipeline": pipeline, "dry_run": dry_run, "queries": [one.to_json() for one in done]})
        return
    names = ("keys", "equal", "changed", "added", "removed", "expired", "records")
    table(("query", "batch", *names), [(o.query, o.batch, *(o.figures.get(n, 0) for n in names)) for o in done])
    if dry_run:
        say("Nothing was changed. Without --dry-run what differs is put right.")
