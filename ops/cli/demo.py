"""`demo`: the main job on real flights, with two kills in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward demo --keep[/] leaves the stack up for a look at Dagster; afterwards "
        "[bold]ROLLFORWARD_HOME=.rollforward-demo rollforward down --wipe[/]"
    )(demo)


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave stack and pipeline running at the end.")] = False,
    home: Annotated[
        Path, typer.Option(help="Data folder of the demo; what an earlier demo left there is deleted.")
    ] = Path(".rollforward-demo"),
    replay_s: Annotated[
        float, typer.Option("--replay", min=10, max=600, help="Seconds over which flights arrive.")
    ] = 60.0,
) -> None:
    """Count 336,776 real flights while the job is killed twice, and compare every result with pandas."""
    from ops.demo.story import tell_story

    if not tell_story(home.absolute(), keep=keep, replay_s=replay_s):
        raise typer.Exit(1)
