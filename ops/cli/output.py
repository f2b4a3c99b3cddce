"""What the commands print: answers on stdout, progress on stderr.

Progress is one line that moves on a terminal and plain lines elsewhere, so that a log of it can be read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipelines.jsonvalue import dump

if TYPE_CHECKING:
    from ops.environment import Progress

# A table in a pipe is for another program or a log: cutting its cells at 80 columns would lose what it says.
_PIPE_WIDTH = 200


def out() -> Console:
    """Stdout."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def say(text: str = "") -> None:
    """One line on stdout, as it is."""
    print(text, flush=True)


def counted(number: int, noun: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def answer(value: Any) -> None:
    """One JSON value on a line of stdout; values of columns as the results in Kafka have them."""
    print(dump(value), flush=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, thousands: bool = True) -> None:
    """Rows under headers on stdout; an empty cell is shown as a dash. Numbers stand to the right.

    Without `thousands` whole numbers are digits alone: those of a store may be years, or wanted for copying.
    """
    shown = [list(row) for row in rows]
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, header in enumerate(headers):
        numeric = any(isinstance(row[number], int | float) for row in shown)
        grid.add_column(header, justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        grid.add_row(*(escape(_cell(value, thousands)) for value in row))
    out().print(grid)


def _cell(value: object, thousands: bool) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if thousands and isinstance(value, int) else str(value)


def duration(seconds: float | None) -> str:
    """12 s, 3 min, 2 h 5 min; a dash for None."""
    if seconds is None:
        return "-"
    minutes = int(seconds // 60)
    if minutes == 0:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """Gives a function of (step, detail) that shows how far a long command is."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status(escape(title)) as status:
            yield lambda step, detail: status.update(f"{escape(title)} [dim]{escape(step)}: {escape(detail)}[/dim]")
        return
    started, last = time.monotonic(), ""

    def line(step: str, detail: str) -> None:
        nonlocal last
        text = f"{step}: {detail}"
        if text != last:
            print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr, flush=True)
        last = text

    yield line
