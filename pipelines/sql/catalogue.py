"""What statements may name: streams and tables, by name. The planner asks; who keeps the definitions answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from pipelines.plan import Source
from pipelines.sql.error import Refusal, nearest
from pipelines.sql.names import Name


@dataclass(frozen=True)
class Relation:
    """A stream or table. `kind` is STREAM or TABLE; `source` is how its topic is read, its key columns included.

    `key_format` is `kafka`, `json`, or empty for records without a key that anybody reads. `sql` is the statement that
    made it, and `query` names the query that fills it, empty for a topic that others write.
    """

    name: str
    kind: str
    source: Source
    key_format: str
    sql: str
    query: str = ""
    windowed: bool = False


class Catalogue(Protocol):
    """The definitions at one moment. Names are as the statements mean them: upper case unless back-quoted."""

    def find(self, name: str) -> Relation | None:
        """The relation of this name, if there is one."""

    def names(self) -> Iterable[str]:
        """All names."""


class Relations:
    """A catalogue in memory."""

    def __init__(self, relations: Iterable[Relation] = ()) -> None:
        self._relations = {relation.name: relation for relation in relations}

    def add(self, relation: Relation) -> None:
        """Add, or replace the one of its name."""
        self._relations[relation.name] = relation

    def find(self, name: str) -> Relation | None:
        """The relation of this name, if there is one."""
        return self._relations.get(name)

    def names(self) -> Iterable[str]:
        """All names, in the order in which they came."""
        return tuple(self._relations)


def require(catalogue: Catalogue, name: Name, what: str = "stream or table") -> Relation:
    """The relation that a statement names. Refuses an unknown name with the nearest known one."""
    found = catalogue.find(name.text)
    if found is None:
        raise Refusal(
            name.at, f"unknown {what}: Source {name.text} does not exist", nearest(name.text, catalogue.names())
        )
    return found
