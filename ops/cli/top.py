"""`top`: the pipelines as they are now, on a terminal that follows them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json
from ops.cli.output import answer, duration, out, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group
    from rich.table import Table

    from ops.top import PipelineLine, QueryLine


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward top[/] follows every pipeline until Ctrl-C; [bold]rollforward top flights --once[/] "
        "prints one picture; [bold]--json[/] prints one as JSON."
    )(top)


def top(
    pipelines: Annotated[list[str] | None, typer.Argument(metavar="[PIPELINE]...", help="These alone.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two pictures.")] = 2.0,
    json: Json = False,
) -> None:
    """Follow pipelines and their tasks: state, rates, lag, stores, recovery, snapshots."""
    from rich.live import Live

    from ops.top import look, to_json

    settings = settings_of_here()
    with registry_of(settings) as registry:
        lines = look(registry, pipelines or ())
        if json:
            answer({"pipelines": to_json(lines)})
            return
        if not lines:
            say("No pipeline is deployed: rollforward deploy FILE --pipeline NAME")
            return
        if once or not out().is_terminal:
            out().print(picture(lines))
            return
        with Live(picture(lines), console=out(), screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                live.update(picture(look(registry, pipelines or ())), refresh=True)


def picture(lines: Sequence[PipelineLine]) -> Group:
    """Everything as tables: one of the queries, one of the tasks."""
    from rich.console import Group
    from rich.markup import escape

    parts: list[Any] = []
    for line in lines:
        colour = "green" if line.state == line.desired else "yellow" if line.state in _COMING else "red"
        head = f"[bold]{line.pipeline}[/]  [{colour}]{line.state}[/]"
        if line.pid is not None:
            head += f"  pid {line.pid}, {_size(line.memory_bytes)}, {line.servers} store servers"
        parts.append(f"{head}  [red]{escape(line.trouble)}[/]" if line.trouble else head)
        parts.append(_queries(line.queries) if line.queries else "  no batch yet")
        parts.append("")
    return Group(*parts)


_COMING = ("starting", "recovering")


def _queries(queries: Sequence[QueryLine]) -> Table:
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for header in ("query", "batch", "records/s", "batch s", "lag", "ago", "≈ keys", "store", "state", "snapshot"):
        grid.add_column(header, justify="left" if header in ("query", "state") else "right")
    for query in queries:
        keys, size = sum(task.keys for task in query.tasks), sum(task.bytes for task in query.tasks)
        grid.add_row(
            *(f"[bold]{query.query}[/]", str(query.batch), f"{query.records_per_s:,.0f}", f"{query.batch_seconds:.2f}"),
            *(f"{query.lag:,}", duration(query.age_s), f"{keys:,}", _size(size), "", ""),
        )
        for task in query.tasks:
            state = "open" if task.open else "closed" if task.recovery is None else f"recovers {task.recovery:.0%}"
            age = duration(task.snapshot_age_s) if task.snapshot_age_s is not None else "-"
            grid.add_row(
                *(f"  {task.task}", str(task.batch), "", "", "", "", f"{task.keys:,}", _size(task.bytes), state, age)
            )
    return grid


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
