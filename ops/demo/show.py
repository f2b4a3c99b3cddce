"""What the demo prints: numbered steps with their times. On a terminal the running step moves, elsewhere it reports
every few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.status import Status

_REPORT_S = 5.0


@dataclass
class Step:
    """A running step: `note` says how far it is, `result` what came of it."""

    title: str
    result: str = ""
    _status: Status | None = None
    _console: Console | None = None
    _started: float = field(default_factory=time.monotonic)
    _reported: float = 0.0
    _last: str = ""

    @property
    def seconds(self) -> float:
        """Since the step began."""
        return time.monotonic() - self._started

    def note(self, text: str) -> None:
        """Show how far the step is."""
        if self._status is not None:
            self._status.update(f"{escape(self.title)} [dim]{escape(text)}[/dim]")
        elif self._console is not None and text != self._last and time.monotonic() - self._reported >= _REPORT_S:
            self._reported, self._last = time.monotonic(), text
            self._console.print(f"            {escape(text)}", soft_wrap=True)

    def progress(self, step: str, detail: str) -> None:
        """`note`, as a progress function of (step, detail)."""
        self.note(f"{step}: {detail}")


class Show:
    """The demo's output on stdout."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._started = time.monotonic()
        self._number = 0

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._started

    def say(self, text: str = "") -> None:
        """One line, as it is."""
        self.console.print(escape(text), soft_wrap=True)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Runs a step and prints its line when it is over: a tick and the seconds, or a cross where it raised."""
        self._number += 1
        step = Step(title, _console=self.console)
        head = f"{self._number:2d}"
        try:
            if self.console.is_terminal:
                with self.console.status(escape(title)) as step._status:
                    yield step
            else:
                self.console.print(f"{head}  …        {escape(title)}", soft_wrap=True)
                yield step
        except BaseException:
            self.console.print(f"{head}  [red]✗[/] {step.seconds:5.1f} s {escape(title)}", soft_wrap=True)
            raise
        result = f" [dim]{escape(step.result)}[/dim]" if step.result else ""
        self.console.print(f"{head}  [green]✓[/] {step.seconds:5.1f} s {escape(title)}{result}", soft_wrap=True)
