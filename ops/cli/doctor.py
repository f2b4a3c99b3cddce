"""`doctor`: what stands in the way, each thing with its fix."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.context import settings_of_here
from ops.cli.options import Json
from ops.cli.output import answer, counted, out, say

_SIGNS = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "error": "[red]error[/]  "}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="Exit status: 0 nothing is wrong, 1 something is, also with --strict for warnings.\n\n"
        "[bold]rollforward doctor --json | jq '.findings[] | select(.level != \"ok\")'[/]"
    )(doctor)


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors for the exit status.")] = False,
    json: Json = False,
) -> None:
    """Examine this machine, Kafka's settings and rights, disks, clocks, storage, and retention against recovery."""
    from rich.markup import escape

    from ops.doctor.examine import examine

    settings = settings_of_here()
    levels, findings = [], []
    for finding in examine(settings):
        levels.append(finding.level.value)
        findings.append({**vars(finding), "level": finding.level.value})
        if not json:
            out().print(f"{_SIGNS[finding.level.value]}  [bold]{escape(finding.what)}[/]: {escape(finding.text)}")
            if finding.fix:
                out().print(f"           fix: {escape(finding.fix)}")
    bad = levels.count("error") + (levels.count("warning") if strict else 0)
    if json:
        answer({"healthy": bad == 0, "findings": findings})
    else:
        counts = [counted(levels.count(level), level) for level in ("error", "warning")]
        say(f"\n{', '.join(counts)}, {levels.count('ok')} well")
    if bad:
        raise typer.Exit(1)
