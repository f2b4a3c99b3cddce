"""`deploy`: a file of SQL becomes a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli.context import registry_of, settings_of_here, stack_of
from ops.cli.options import Json
from ops.cli.output import answer, progress, say, table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward deploy pipelines/examples/flights.sql --pipeline flights[/]\n\n"
        "Deploying the same statements twice is harmless. Other statements need another name."
    )(deploy)


def deploy(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", exists=True, dir_okay=False, readable=True, help="SQL statements, UTF-8."),
    ],
    pipeline: Annotated[str, typer.Option("--pipeline", "-p", help="Name: a-z, 0-9 and _. Topics begin with it.")],
    json: Json = False,
) -> None:
    """Check a file of SQL, create its topics, and register it as a pipeline."""
    from pipelines.deploy import deployed_queries
    from pipelines.metastore.embedded import deploy as deploy_pipeline
    from statestore.errors import InvalidInput

    try:
        sql = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput("file is not UTF-8 text", file=file, error=error.reason, hint="save it as UTF-8") from error
    settings = settings_of_here()
    with registry_of(settings) as registry:
        row, changed = deploy_pipeline(sql, pipeline, settings, registry)
    queries = [
        {
            "query": deployed.query.name,
            "source": deployed.query.source.topic,
            "output_topic": deployed.query.output_topic,
            "store": deployed.query.store,
            "tasks": deployed.query.tasks,
        }
        for deployed in deployed_queries(row)
    ]
    dagster = "" if not changed else _reload(stack_of(settings).status().dagster_url)
    if json:
        answer({"pipeline": pipeline, "changed": changed, "queries": queries, "dagster": dagster or None})
        return
    _show(pipeline, queries, changed=changed)
    if dagster:
        say(f"Dagster {dagster}")
    say(f"Next: rollforward start {pipeline}")


def _reload(url: str | None) -> str:
    """Make a running Dagster see the new pipeline; gives what to tell people. Its failure leaves the deploy as it is."""
    if url is None:
        return ""
    from ops.dagster.reload import reload_definitions

    with progress("Deploying") as tell:
        tell("dagster", "loading the new definitions")
        loaded = reload_definitions(url)
    return f"shows it on {url}" if loaded else f"could not load it: reload the definitions on {url}"


def _show(pipeline: str, queries: list[dict[str, Any]], *, changed: bool) -> None:
    say(
        f"Pipeline {pipeline} is deployed." if changed else f"Pipeline {pipeline} was deployed before, nothing changed."
    )
    table(
        ("query and store", "reads topic", "writes topic", "tasks"),
        [(q["query"], q["source"], q["output_topic"], q["tasks"]) for q in queries],
    )
