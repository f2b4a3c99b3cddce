"""`incidents`: what alerts have started."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json
from ops.cli.output import answer, say, table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward incidents --json | jq '.[] | select(.closed_at == null)'[/]\n\n"
        "Which alert starts what: alert_routes in rollforward.toml, docs/alerts.md."
    )(incidents)


def incidents(
    pipeline: Annotated[str, typer.Option(help="Of this pipeline alone.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 20,
    json: Json = False,
) -> None:
    """Show the newest incidents: the alert, the run that was started about it, how it ended."""
    from ops.alerts.incidents import Incidents
    from ops.alerts.routes import routes_of

    settings = settings_of_here()
    with registry_of(settings) as registry:
        found = Incidents(registry.engine, routes_of(settings)).newest(limit, pipeline=pipeline)
    if json:
        answer(found)
        return
    if not found:
        say("There was no incident.")
        return
    table(
        ("id", "alert", "pipeline", "began", "until", "job", "run", "outcome"),
        [
            (
                *(str(row["id"]), row["name"], row["pipeline"], _time(row["opened_at"])),
                "open" if row["closed_at"] is None else _time(row["closed_at"]),
                *(row["job"], row["run_url"], row["outcome"]),
            )
            for row in found
        ],
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
