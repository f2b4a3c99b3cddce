"""`clone`: a copy of a pipeline, at a batch or a time, with topics of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json, PipelineName
from ops.cli.output import answer, progress, say, table
from ops.cli.past import At, AtBatch, require_one, time_ms


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward clone flights --as what_if[/]\n\n"
        "[bold]rollforward clone flights --as yesterday --at 2026-03-01T12:00:00 --stopped[/]\n\n"
        "Killed in the middle, the same command goes on with it, and `rollforward drop` takes it away."
    )(clone)


def clone(
    pipeline: PipelineName,
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Name of the copy.")],
    at_batch: AtBatch = None,
    at: At = None,
    stopped: Annotated[bool, typer.Option("--stopped", help="Do not start the copy.")] = False,
    json: Json = False,
) -> None:
    """Start a copy of a pipeline with its stores, under another name. The original is only read, and may run meanwhile.

    The copy reads the same source topics, from where the batch ended, and writes topics of its own.
    """
    require_one(at_batch, at)
    from ops import control
    from ops.past import require_stopped
    from pipelines.clone import clone as make

    settings = settings_of_here()
    with registry_of(settings) as registry, progress(f"Cloning {pipeline}") as tell:
        row = registry.pipeline(pipeline)
        if registry.find(name) is not None:
            hint = f"if it is this copy, `rollforward start {name}` goes on with it; otherwise choose another name"
            require_stopped(settings, registry, name, hint=hint)
        made = make(row, name, settings, registry, batch=at_batch, at_ms=time_ms(at), tell=tell)
        # Whoever starts what is to run must find a whole copy, so it is wanted last.
        pid = None if stopped else control.start(settings, registry, name, on_progress=tell)
    if json:
        state = {"state": "stopped" if stopped else "running", "pid": pid}
        answer({"pipeline": name, "origin": pipeline, **state, "queries": [one.to_json() for one in made]})
        return
    table(
        ("query", "version of batch", "keys", "copied now"),
        [(one.query, one.batch, one.keys, one.copied_now) for one in made],
    )
    if stopped:
        say(f"It goes on from there: rollforward start {name}")
    else:
        say(f"Pipeline {name} goes on from there, driver {pid}. Watch it: rollforward status")
