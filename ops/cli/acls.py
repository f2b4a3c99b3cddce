"""`acls`: what the user of the pipelines must be allowed in Kafka, and no more."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json
from ops.cli.output import answer, say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="[bold]rollforward acls orders --source clicks --user shop[/]: before the first deploy.")(acls)


def acls(
    pipelines: Annotated[list[str] | None, typer.Argument(metavar="[PIPELINE]...", help="These; default: all.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Source topics of pipelines not deployed yet.")] = None,
    result: Annotated[
        list[str] | None, typer.Option(help="Result topics of pipelines not deployed yet that have names of their own.")
    ] = None,
    user: Annotated[str, typer.Option(help="Whom to grant it.")] = "rollforward",
    json: Json = False,
) -> None:
    """Print the commands that grant the least that pipelines need in Kafka."""
    from ops.access import accesses
    from pipelines.plan import query_from_json

    settings = settings_of_here()
    sources, results = set(source or ()), set(result or ())
    with registry_of(settings) as registry:
        names = pipelines or registry.pipeline_names()
        for name in names:
            row = registry.find(name)
            if row is not None:
                sources |= {str(entry["topic"]) for entry in row.sources}
                results |= {query_from_json(query["plan"]).output_topic for query in row.queries}
    found = accesses(settings.service, names, sources, results)
    if json:
        answer([asdict(access) for access in found])
        return
    for access in found:
        say(f"# {access.why}\n{access.command(user)}")
