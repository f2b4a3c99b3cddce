"""`bootstrap`: start a new pipeline with all history, the archive's first."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json, PipelineName
from ops.cli.output import answer, progress, say
from ops.cli.reset import show


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward bootstrap shop --dry-run[/]\n\n[bold]rollforward bootstrap shop --yes[/]\n\n"
        "Killed in the middle, run it again: until it is done the pipeline has computed nothing."
    )(bootstrap)


def bootstrap(
    pipeline: PipelineName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show where it would begin.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="How long to wait until the driver runs.")
    ] = 600.0,
    json: Json = False,
) -> None:
    """Start a pipeline that never ran with the first record of its source's archive, and go on with the live topic.

    Batches go on from offset to offset, wherever their records are, so there is neither gap nor double between the two.
    """
    from ops import control
    from ops.reset import bootstrap_all
    from pipelines.metastore.embedded import want
    from pipelines.registry import RUNNING

    settings = settings_of_here()
    pid = None
    with registry_of(settings) as registry:
        looked = bootstrap_all(registry, settings, pipeline, dry_run=True)
        if not dry_run:
            if not yes and json:
                raise typer.BadParameter("with --json nobody can be asked: add --yes")
            if not yes:
                show(looked)
                typer.confirm(f"Start {pipeline} there?", abort=True)
            with progress(f"Bootstrapping {pipeline}") as tell:
                looked = bootstrap_all(registry, settings, pipeline, dry_run=False, tell=tell)
                want(pipeline, RUNNING, settings, registry)
                pid = control.launch(settings, registry, pipeline, timeout_s=timeout_s, on_progress=tell)
    if json:
        queries = [one.to_json() for one in looked]
        answer({"pipeline": pipeline, "dry_run": dry_run, "pid": pid, "queries": queries})
        return
    show(looked)
    say(
        "Nothing was changed."
        if dry_run
        else f"Driver {pid} runs; see how far it is: rollforward top {pipeline} --once"
    )
