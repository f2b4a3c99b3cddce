"""`sql`: statements from a shell, a file or the command line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json
from ops.cli.output import progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.console.session import Session
    from pipelines.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward sql[/]\n\n"
        """[bold]rollforward sql -e "SELECT * FROM totals WHERE shop = 's1';"[/]\n\n"""
        "[bold]rollforward sql -f statements.sql --json[/]"
    )(sql)


def sql(
    statements: Annotated[
        str | None, typer.Option("-e", "--execute", metavar="SQL", help="Run these statements and end.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="Run a file of statements and end; - for stdin.")
    ] = None,
    json: Json = False,
) -> None:
    """Define, run and look into streams and tables with SQL. Without -e and -f it is a shell with history and completion.

    CREATE STREAM and TABLE, CREATE … AS SELECT, INSERT INTO, DROP, TERMINATE, PAUSE, RESUME, SHOW, DESCRIBE, EXPLAIN,
    SELECT from a table by key or range, SET, DEFINE. With --json every statement answers with one line.
    """
    if statements is not None and file is not None:
        raise typer.BadParameter("give -e or -f, not both")
    text = statements if file is None else _read(file)
    from ops.cli.sql_output import run_script
    from ops.cli.sql_shell import run_shell

    settings = settings_of_here()
    with _session(settings) as session:
        if text is not None or json or not sys.stdin.isatty():
            run_script(session, sys.stdin.read() if text is None else text, as_json=json)
        else:
            run_shell(session, settings.home / "sql_history")


def _read(file: Path) -> str:
    from statestore.errors import InvalidInput

    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput("file is not UTF-8 text", file=file, error=error.reason, hint="save it as UTF-8") from error


@contextmanager
def _session(settings: Settings) -> Iterator[Session]:
    from ops import control
    from pipelines.console.executor import MetastoreExecutor
    from pipelines.console.session import Session

    @cache
    def spark() -> SparkSession:
        return _start_spark(settings)

    with registry_of(settings) as registry:

        def end(pipeline: str) -> None:
            control.end_running(settings, registry, pipeline)
            if registry.find(pipeline) is None:
                shutil.rmtree(settings.states / pipeline, ignore_errors=True)

        try:
            yield Session(MetastoreExecutor(settings, registry, end=end, spark=spark))
        finally:
            if spark.cache_info().currsize:
                spark().stop()


def _start_spark(settings: Settings) -> SparkSession:
    from ops.environment import with_spark
    from pipelines.engine.spark import start_session

    with progress("Starting Spark") as tell:
        ready = with_spark(settings, tell)
        return start_session(ready, "rollforward-sql", settings.home / "spark" / "sql")
