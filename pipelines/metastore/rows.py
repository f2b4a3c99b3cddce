"""The projection's content as plain values: what a checkpoint carries and what two projections are compared by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from statestore.errors import DataCorrupted


class Definition(NamedTuple):
    """`body` is JSON text."""

    kind: str
    name: str
    body: str
    sequence: int


class Applied(NamedTuple):
    """A command that was applied."""

    sequence: int
    id: str
    key: str
    kind: str
    pipeline: str
    statement: str
    at_ms: int


class Aside(NamedTuple):
    """A record that was set aside."""

    sequence: int
    offset: int
    error: str
    newer: bool
    value: str


_KINDS: dict[str, Any] = {"definition": Definition, "command": Applied, "set_aside": Aside}


@dataclass
class Rows:
    """Everything, each list in the order of its primary key."""

    definitions: list[Definition] = field(default_factory=list)
    commands: list[Applied] = field(default_factory=list)
    set_aside: list[Aside] = field(default_factory=list)

    def tagged(self) -> Iterator[list[Any]]:
        """Each row as `[tag, values…]`."""
        yield from (["definition", *row] for row in self.definitions)
        yield from (["command", *row] for row in self.commands)
        yield from (["set_aside", *row] for row in self.set_aside)


def untagged(values: list[Any]) -> Rows:
    """Inverse of `Rows.tagged`. Raises `DataCorrupted`."""
    rows = Rows()
    lists: dict[str, list[Any]] = {
        "definition": rows.definitions,
        "command": rows.commands,
        "set_aside": rows.set_aside,
    }
    for value in values:
        try:
            tag, *fields = value
            lists[tag].append(_KINDS[tag](*fields))
        except (TypeError, ValueError, KeyError) as error:
            raise DataCorrupted("checkpoint has a row that does not read", row=str(value)[:80]) from error
    return rows
