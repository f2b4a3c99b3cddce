"""`drop`: a stopped pipeline goes."""

from __future__ import annotations

import shutil

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json, PipelineName
from ops.cli.output import answer, say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward stop flights && rollforward drop flights[/]\n\n"
        "Its result topics and dead letters stay; delete them when nobody reads them any more."
    )(drop)


def drop(pipeline: PipelineName, json: Json = False) -> None:
    """Remove a stopped pipeline and its state: changelogs, positions, groups, local stores."""
    from ops import control
    from pipelines.metastore.embedded import execute
    from pipelines.metastore.statement import drop_pipeline
    from statestore.errors import InvalidInput

    settings = settings_of_here()
    with registry_of(settings) as registry:
        registry.pipeline(pipeline)
        if control.is_running(settings, registry, pipeline):
            raise InvalidInput(
                "pipeline still runs, or is being started",
                pipeline=pipeline,
                hint=f"run `rollforward stop {pipeline}` first",
            )
    outcome = execute(drop_pipeline(pipeline), settings)
    shutil.rmtree(settings.states / pipeline, ignore_errors=True)
    if json:
        answer({"pipeline": pipeline, **outcome.to_json()})
    else:
        say(f"Pipeline {pipeline} is dropped. Its results stay in their topics.")
        say(f"Snapshots stay, too, if it had any: rollforward snapshots gc {pipeline} --dropped")
