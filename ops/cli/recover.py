"""`recover`: show the way back to the committed version of every task, or go it."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json, PipelineName
from ops.cli.output import answer, duration, progress, say, table
from ops.cli.past import At, require_one, time_ms


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward recover flights --dry-run[/]\n\n[bold]rollforward recover flights[/]\n\n"
        "[bold]rollforward recover flights --at 2026-03-01T12:00:00 --dry-run[/]\n\n"
        "Dagster's sensor does the same by itself when a driver dies."
    )(recover)


def recover(
    pipeline: PipelineName,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the plans: own, stop and change nothing.")
    ] = False,
    to_batch: Annotated[
        int | None, typer.Option("--to-batch", min=0, help="Go back to the version after this batch.")
    ] = None,
    at: At = None,
    query: Annotated[
        str | None, typer.Option("--query", help="With --to-batch or --at: only this query of the pipeline.")
    ] = None,
    json: Json = False,
) -> None:
    """Bring every store to its last committed version: show the plans, end a dead or hung driver, start another.

    Where a task has no way, every refusal is shown, and nothing is started.

    With --to-batch or --at a stopped pipeline goes back to a version of the past and runs forward from there when it is
    started: its source records since then are read again. Its results stay until they are written again.
    """
    require_one(to_batch, at)
    if to_batch is not None or at is not None:
        _rewind(pipeline, query, to_batch, at, dry_run=dry_run, json=json)
    elif query is not None:
        raise typer.BadParameter("--query needs --to-batch or --at")
    elif dry_run:
        _show_plans(pipeline, json=json)
    else:
        _recover(pipeline, json=json)


def _rewind(
    pipeline: str, query: str | None, to_batch: int | None, at: str | None, *, dry_run: bool, json: bool
) -> None:
    from ops.past import rewind_all

    settings = settings_of_here()
    with registry_of(settings) as registry, progress(f"Going back with {pipeline}") as tell:
        done = rewind_all(
            registry, settings, pipeline, query, batch=to_batch, at_ms=time_ms(at), dry_run=dry_run, tell=tell
        )
    if json:
        answer({"pipeline": pipeline, "dry_run": dry_run, "queries": [one.to_json() for one in done]})
        return
    table(
        ("query", "version of batch", "now batch", "source offsets again", "keys put", "keys deleted"),
        [(one.query, one.batch, one.as_batch, one.offsets_again, one.puts, one.deletes) for one in done],
    )
    if not dry_run:
        say(f"It runs forward from there: rollforward start {pipeline}")


def _show_plans(pipeline: str, *, json: bool) -> None:
    from ops import control
    from ops.recovery_plans import UNRECOVERABLE, plans_of

    settings = settings_of_here()
    with registry_of(settings) as registry:
        row = registry.pipeline(pipeline)
        driver = registry.driver(pipeline)
        running = driver is not None and control.is_alive(driver)
        with progress(f"Looking at {pipeline}") as tell:
            plans = plans_of(row, settings, tell)
    if json:
        answer({"pipeline": pipeline, "dry_run": True, "running": running, "tasks": plans})
    else:
        _tell_plans(plans)
        if running:
            say("\nThe driver runs, so these figures are moving: a task that is one batch behind is applying it.")
    if any(plan["way"] == UNRECOVERABLE for plan in plans):
        raise typer.Exit(1)


def _tell_plans(plans: list[dict[str, Any]]) -> None:
    table(
        ("task", "batch committed", "batch local", "way", "offsets to replay", "estimate", "reason"),
        [_row(plan) for plan in plans],
    )
    say("\nEvery way, with what it would take here:")
    table(
        ("task", "way", "estimate", "bytes", "offsets", "verdict"),
        [_way(plan["task"], way) for plan in plans for way in plan["ways"]],
    )


def _row(plan: dict[str, Any]) -> tuple[object, ...]:
    batches = [None if plan[name] is None or plan[name] < 0 else plan[name] for name in ("batch", "local_batch")]
    return (plan["task"], *batches, plan["way"], plan["offsets"], estimate(plan["estimated_seconds"]), plan["reason"])


def _way(task: str, way: dict[str, Any]) -> tuple[object, ...]:
    """A way's row. One that cannot be gone has no cost; one that only takes longer has."""
    impossible = bool(way["refused"]) and not way["detail"]
    figures = (None, None, None) if impossible else (estimate(way["seconds"]), way["bytes"], way["records"])
    return (task, way["way"], *figures, "chosen: " + way["detail"] if way["chosen"] else way["refused"])


def estimate(seconds: float | None) -> str | None:
    """About how long, in words."""
    if seconds is None:
        return None
    return f"{seconds:.1f} s" if 0 < seconds < 10 else duration(seconds)


def _recover(pipeline: str, *, json: bool) -> None:
    from ops import control
    from ops.recovery_plans import UNRECOVERABLE, plans_of
    from pipelines.metastore.embedded import want
    from pipelines.registry import RUNNING

    settings = settings_of_here()
    since = time.time()
    plans: list[dict[str, Any]] = []
    with registry_of(settings) as registry:
        before = control.status(registry, pipeline)
        # What it would be recovered of counts only where it is to run.
        if before.desired != RUNNING or not control.is_up(before):
            with progress(f"Looking at {pipeline}") as tell:
                plans = plans_of(registry.pipeline(pipeline), settings, tell)
            if not json:
                _tell_plans(plans)
        lost = [plan["task"] for plan in plans if plan["way"] == UNRECOVERABLE]
        pid = None
        if not lost:
            # Behind the look at the tasks: whoever keeps pipelines as desired would start the driver.
            want(pipeline, RUNNING, settings, registry)
            before = control.status(registry, pipeline)
            with progress(f"Recovering {pipeline}") as tell:
                if before.needs_recovery:
                    tell("driver", before.needs_recovery)
                pid = control.launch(settings, registry, pipeline, on_progress=tell)
        tasks = sorted(
            (row.plan for row in registry.recoveries(pipeline, since=since)), key=lambda plan: str(plan["task"])
        )
    relaunched = pid is not None and pid != before.pid
    if json:
        cause = before.needs_recovery or None
        told = {"pipeline": pipeline, "pid": pid, "relaunched": relaunched, "cause": cause}
        answer({**told, "plans": plans, "tasks": tasks})
    elif lost:
        say(f"\nNothing was started: no way leads to the committed version of {', '.join(lost)}.")
    elif not relaunched:
        say(f"Nothing to recover: driver {pid} runs.")
    else:
        _tell_recovered(pipeline, pid, before.needs_recovery, tasks)
    if lost:
        raise typer.Exit(1)


def _tell_recovered(pipeline: str, pid: int | None, cause: str, tasks: list[dict[str, Any]]) -> None:
    say(f"\nPipeline {pipeline} runs again, driver {pid}." + (f" Before: {cause}." if cause else ""))
    table(
        ("task", "batch committed", "way", "offsets", "records", "seconds", "reason"),
        [
            (
                t["task"],
                t["batch"] if t["batch"] >= 0 else None,
                t["way"],
                t["offsets"],
                t["records"],
                t["seconds"],
                t["reason"],
            )
            for t in tasks
        ],
    )
