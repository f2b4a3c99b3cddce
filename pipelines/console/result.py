"""What a statement answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipelines.sql import Parsed


@dataclass(frozen=True)
class Result:
    """A message, a table, a text, or some of them. `rows` may be read once, and are made while they are read.

    `text` is for people alone (a plan of Spark); everything else is for machines too.
    """

    message: str = ""
    columns: tuple[str, ...] = ()
    rows: Iterable[tuple[Any, ...]] = field(default=(), compare=False)
    text: str = ""


class Executor(Protocol):
    """Executes statements against definitions. Who keeps them is its own affair."""

    def execute(self, parsed: Parsed, properties: dict[str, str]) -> Result:
        """Execute one statement; `properties` are those that the session has set.

        Raises `SqlError` for the statement, and `RollforwardError` for what is outside.
        """

    def names(self) -> tuple[str, ...]:
        """Streams, tables and query ids, for completion."""
