"""Options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer


def _remember(ctx: typer.Context, value: bool) -> bool:
    """Tell the root that errors have to be JSON as well."""
    ctx.find_root().ensure_object(dict)["json"] = value
    return value


Json = Annotated[
    bool, typer.Option("--json", callback=_remember, is_eager=True, help="Answer in JSON on stdout, errors too.")
]
PipelineName = Annotated[str, typer.Argument(metavar="PIPELINE", help="Name of a deployed pipeline.")]
