"""`start`, `stop`, `run`, `logs`: a pipeline's driver, detached or in the foreground."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json, PipelineName
from ops.cli.output import answer, progress, say

if TYPE_CHECKING:
    from pipelines.settings import Settings

_FOLLOW_S = 0.2


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog="[bold]rollforward start flights[/]\n\nThe driver outlives this command. Dagster starts it again "
        "when it dies, until [bold]rollforward stop[/]."
    )(start)
    app.command(epilog="[bold]rollforward stop flights --timeout 120[/]")(stop)
    app.command(
        epilog="[bold]rollforward run flights --until-end[/]\n\nA driver that already runs is fenced: it stops, and "
        "nothing is counted twice."
    )(run)
    app.command(epilog="[bold]rollforward logs flights -f[/]")(logs)


AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Go on where source records were deleted before they were read, or lost after it; the next batch says which.",
    ),
]


def start(pipeline: PipelineName, accept_loss: AcceptLoss = False, json: Json = False) -> None:
    """Make a pipeline run, now and after every failure."""
    from ops import control

    settings = settings_of_here()
    with registry_of(settings) as registry, progress(f"Starting {pipeline}") as tell:
        pid = control.start(settings, registry, pipeline, accept_loss=accept_loss, on_progress=tell)
    if json:
        answer({"pipeline": pipeline, "pid": pid, "state": "running"})
    else:
        say(f"Pipeline {pipeline} runs, driver {pid}. Watch it: rollforward status, rollforward logs {pipeline} -f")


def stop(
    pipeline: PipelineName,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for the running batch; then the driver is killed.")
    ] = 60.0,
    json: Json = False,
) -> None:
    """Stop a pipeline between two batches, until it is started again."""
    from ops import control

    settings = settings_of_here()
    with registry_of(settings) as registry, progress(f"Stopping {pipeline}") as tell:
        registry.pipeline(pipeline)
        tell("driver", "finishes its batch")
        stopped = control.stop(settings, registry, pipeline, timeout_s=timeout)
    if json:
        answer({"pipeline": pipeline, "stopped": stopped})
    else:
        say(f"Pipeline {pipeline} is stopped." if stopped else f"Pipeline {pipeline} did not run.")


def run(
    pipeline: PipelineName,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Process what is present now, print one line of JSON, exit.")
    ] = False,
    accept_loss: AcceptLoss = False,
) -> None:
    """Run a pipeline in the foreground, until Ctrl-C or the end of its input.

    It counts as started meanwhile; if it was stopped before, it is again behind that, unless somebody has started it.
    """
    from ops import control
    from ops.environment import with_spark

    settings = settings_of_here()
    settings.kafka_config()
    with registry_of(settings) as registry:
        registry.pipeline(pipeline)
        driver = registry.driver(pipeline)
        if driver is not None and control.is_alive(driver):
            print(f"driver {driver.pid} runs: this one takes over and fences it", file=sys.stderr)
    with progress(f"Preparing {pipeline}") as tell:
        settings = with_spark(settings, tell)
    settings = settings.model_copy(update={"accept_loss": accept_loss or settings.accept_loss})
    _log_to_stderr()
    with _stdout_alone() as stdout:
        from pipelines.pipeline_driver import run_pipeline

        with _desired(pipeline, settings):
            figures = run_pipeline(pipeline, settings, until_end=until_end)
        if until_end:
            stdout.write(json.dumps(figures) + "\n")


@contextmanager
def _desired(pipeline: str, settings: Settings) -> Iterator[None]:
    """`running` is desired within, or the driver would end at once, or Dagster end it; behind it again what was before.

    Somebody who starts the pipeline meanwhile wants it to run behind that, too. A process that is killed leaves it desired,
    and Dagster goes on with the pipeline, as after any driver's death.
    """
    from pipelines.metastore.embedded import want
    from pipelines.metastore.lent import lent
    from pipelines.registry import RUNNING
    from statestore.errors import Fenced

    with lent(settings.home, pipeline) as is_lent:
        with registry_of(settings) as registry:
            was_stopped = want(pipeline, RUNNING, settings, registry, for_now=True)
        try:
            yield
        except Fenced:
            # The driver that has taken over is to go on.
            was_stopped = False
            raise
        finally:
            if was_stopped and is_lent():
                _stop_again(pipeline, settings)


def _stop_again(pipeline: str, settings: Settings) -> None:
    """Behind a run. What goes wrong is told and not raised: what has ended the run is raised."""
    from sqlalchemy.exc import SQLAlchemyError

    from pipelines.metastore.embedded import want
    from pipelines.registry import STOPPED
    from statestore.errors import RollforwardError

    try:
        with registry_of(settings) as registry:
            want(pipeline, STOPPED, settings, registry)
    except (RollforwardError, SQLAlchemyError, OSError) as error:
        hint = f"stop it with: rollforward stop {pipeline}"
        print(f"pipeline {pipeline} may still be desired to run: {error}; {hint}", file=sys.stderr)


@contextmanager
def _stdout_alone() -> Iterator[IO[str]]:
    """Gives stdout to the caller only: what Java, Spark and their children print goes to stderr."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w") as mine:
        os.dup2(2, 1)
        try:
            yield mine
            mine.flush()
        finally:
            sys.stdout.flush()
            os.dup2(mine.fileno(), 1)


def _log_to_stderr() -> None:
    import structlog

    from statestore import logs

    if sys.stderr.isatty():
        logs.to_stderr(structlog.dev.ConsoleRenderer())
    else:
        logs.json_to_stderr()


def logs(
    pipeline: PipelineName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is added, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Begin with so many last lines.")] = 50,
) -> None:
    """Print the log of a pipeline's detached driver."""
    from ops import control
    from statestore.errors import InvalidInput

    settings = settings_of_here()
    with registry_of(settings) as registry:
        registry.pipeline(pipeline)
    path = control.driver_log(settings, pipeline)
    if not path.exists():
        raise InvalidInput(
            "pipeline was never started here", pipeline=pipeline, hint=f"run `rollforward start {pipeline}`"
        )
    _print_log(path, lines=lines, follow=follow)


def _print_log(path: Path, *, lines: int, follow: bool) -> None:
    from collections import deque

    with path.open(encoding="utf-8", errors="replace") as file:
        for line in deque(file, maxlen=lines):
            sys.stdout.write(line)
        sys.stdout.flush()
        while follow:
            added = file.read()
            if added:
                sys.stdout.write(added)
                sys.stdout.flush()
            elif os.fstat(file.fileno()).st_size < os.lseek(file.fileno(), 0, os.SEEK_CUR):
                # It was cut, as logrotate's copytruncate does: what is added begins anew.
                file.seek(0)
            else:
                time.sleep(_FOLLOW_S)
