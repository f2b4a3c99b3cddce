"""Entry point: the root command and its groups."""

from __future__ import annotations

import sys

import structlog
import typer

from ops.cli import (
    acls,
    archive,
    backfill,
    bootstrap,
    clone,
    demo,
    deploy,
    doctor,
    drift,
    drop,
    incidents,
    lifecycle,
    metastore,
    query,
    recover,
    reset,
    serve,
    snapshots,
    sql,
    stack,
    test,
    top,
    verify,
)
from ops.cli.guard import Guarded
from statestore import logs

app = typer.Typer(
    name="rollforward",
    cls=Guarded,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Streaming pipelines with exactly-once state: Kafka to Kafka, in SQL, run by Spark, operated by Dagster.",
    epilog="First steps: [bold]rollforward up[/], then [bold]rollforward deploy FILE --pipeline NAME[/], "
    "then [bold]rollforward start NAME[/]. All of it at once: [bold]rollforward demo[/].",
)

for group in (
    stack,
    deploy,
    lifecycle,
    top,
    incidents,
    doctor,
    acls,
    drop,
    query,
    sql,
    test,
    recover,
    reset,
    snapshots,
    clone,
    backfill,
    bootstrap,
    archive,
    verify,
    drift,
    metastore,
    serve,
    demo,
):
    group.register(app)


@app.callback()
def root(ctx: typer.Context) -> None:
    """Keeps what the commands tell the root. Logs go to stderr: stdout is for answers, which machines read."""
    ctx.ensure_object(dict)
    logs.to_stderr(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))


if __name__ == "__main__":
    app()
