"""`test`: a pipeline checked without deploying it."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.options import Json

if TYPE_CHECKING:
    from pipelines.testing.run import Outcome

EPILOG = (
    "[bold]rollforward test -s statements.sql -i input.json -o output.json[/]\n\n"
    "[bold]rollforward test cases/[/]   every subfolder is a case\n\n"
    "[bold]rollforward test cases/ --json[/]   one line a case, for machines"
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EPILOG)(test)


def test(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Run every subfolder of it that holds a case.")
    ] = None,
    statements: Annotated[
        Path | None, typer.Option("-s", "--sql-file", metavar="FILE", help="Statements of one case.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option("-i", "--input-file", metavar="FILE", help='Its records: {"inputs": […]}.')
    ] = None,
    outputs: Annotated[
        Path | None, typer.Option("-o", "--output-file", metavar="FILE", help='What must come out: {"outputs": […]}.')
    ] = None,
    json: Json = False,
) -> None:
    """Check statements with records in and records out, without Kafka and without deploying anything.

    A case is statements.sql, input.json and output.json; with error.txt in place of output.json its last statement must
    be refused with that text. Every record gives its own result, as with emit='every-record'. Exit status 0 if all
    passed, 1 if not.
    """
    failed = passed = 0
    started = time.monotonic()
    for outcome in _outcomes(folder, statements, inputs, outputs):
        passed, failed = passed + outcome.passed, failed + (not outcome.passed)
        _tell(outcome, as_json=json)
    if not json and folder is not None:
        typer.echo(f"{passed} passed, {failed} failed in {time.monotonic() - started:.1f} s")
    raise typer.Exit(1 if failed else 0)


def _outcomes(
    folder: Path | None, statements: Path | None, inputs: Path | None, outputs: Path | None
) -> Iterator[Outcome]:
    from ops.testing import session
    from pipelines.testing.case import case_folders, read_files, read_folder
    from pipelines.testing.run import run_case

    if folder is not None:
        if statements or inputs or outputs:
            raise typer.BadParameter("give DIR, or -s, -i and -o")
        for case in case_folders(folder):
            yield run_case(partial(read_folder, case), case.name, session)
        return
    if statements is None or inputs is None or outputs is None:
        raise typer.BadParameter("give DIR, or -s, -i and -o")
    yield run_case(lambda: read_files(statements, inputs, outputs), statements.stem, session)


def _tell(outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        fields = {"case": outcome.case, "passed": outcome.passed, "error": outcome.error}
        print(jsonlib.dumps(fields, ensure_ascii=False), flush=True)
        return
    typer.echo(f"{'passed' if outcome.passed else 'FAILED'}  {outcome.case}")
    if outcome.error is not None:
        typer.echo("\n".join(f"    {line}" for line in outcome.error.splitlines()))
