"""`drift`: where the world differs from what the metastore says."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.context import settings_of_here
from ops.cli.options import Json
from ops.cli.output import answer, progress, say, table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward drift[/]\n\n[bold]rollforward drift --repair[/]\n\n"
        "Exit status 1: something differs. A repair never touches state or input of a deployed pipeline."
    )(drift)


def drift(
    repair: Annotated[bool, typer.Option("--repair", help="Put right what can be put right without guessing.")] = False,
    json: Json = False,
) -> None:
    """Compare the metastore with topics, groups, drivers and stores."""
    from ops.drift import find
    from pipelines.metastore import drift as found

    settings = settings_of_here()
    with progress("drift") as tell:
        tell("kafka", "comparing with the metastore")
        findings = find(settings)
    done = found.repair(findings) if repair else []
    left = find(settings) if done else findings
    if json:
        answer({"drift": [f.to_json() for f in left], "repaired": [f.to_json() for f in done]})
    else:
        for finding in done:
            say(f"repaired: {finding.text}: {finding.repair}")
        _show([[f.pipeline, f.what, f.text, (f.repair and f"--repair: {f.repair}") or f.hint] for f in left])
    if left:
        raise typer.Exit(1)


def _show(rows: list[list[str]]) -> None:
    if not rows:
        say("Everything is as the metastore says.")
        return
    table(("pipeline", "what", "differs", "way out"), rows)
