"""The metastore of a test: the real decisions over definitions in memory, in a world where every topic exists."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pipelines import names
from pipelines.console.values import insertable, record_of
from pipelines.metastore.command import Change
from pipelines.metastore.decide import decide
from pipelines.metastore.relations import SnapshotCatalogue
from pipelines.metastore.statement import sql_statement
from pipelines.metastore.validate import DESIRED, STOPPED
from pipelines.plan import EVERY_RECORD, Query, query_to_json
from pipelines.sql import Parsed, SqlError
from pipelines.sql import tree as t
from pipelines.sql.catalogue import Relation
from pipelines.sql.defaults import with_defaults
from pipelines.sql.error import Refusal, locate
from pipelines.testing.topics import Stored

TASKS = 1


class Memory:
    """Definitions as the database keeps them: bodies are JSON."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, str], str] = {}

    def get(self, kind: str, name: str) -> Any:
        """A definition's body, None if there is none."""
        body = self._bodies.get((kind, name))
        return None if body is None else json.loads(body)

    def all(self, kind: str) -> dict[str, Any]:
        """Every definition of a kind, by name."""
        return {name: self.get(kind, name) for name in self.names(kind)}

    def names(self, kind: str) -> list[str]:
        """Their names, sorted."""
        return sorted(name for of, name in self._bodies if of == kind)

    def apply(self, changes: tuple[Change, ...]) -> None:
        """Make the changes of an accepted statement."""
        for change in changes:
            if change.op == "put":
                # A query that is made again goes behind those that were there.
                self._bodies.pop((change.kind, change.name), None)
                self._bodies[change.kind, change.name] = json.dumps(change.body)
            else:
                del self._bodies[change.kind, change.name]

    def in_order(self, kind: str) -> list[str]:
        """The names of a kind in the order in which they were made."""
        return [name for of, name in self._bodies if of == kind]


class EveryTopic:
    """A world in which every topic exists and nothing has to be made. No query has run, so each can be replaced."""

    default_tasks = TASKS
    replaces_queries = True

    def require_sources(self, topics: list[str]) -> None:
        """They exist."""

    def require_topic(self, topic: str, partitions: int | None) -> None:
        """It exists."""

    def topic_id(self, topic: str) -> str:
        """Its name will do."""
        return topic

    def create_topics(self, pipeline: str, query: Query) -> dict[str, str]:
        """The plan with one task."""
        resolved = replace(query, tasks=TASKS, output_partitions=query.output_partitions or TASKS)
        ids = (names.batches_topic(pipeline, query.name), names.changelog_topic(pipeline, query.store))
        return {"plan": query_to_json(resolved), "batches_topic_id": ids[0], "changelog_topic_id": ids[1]}

    def remove(self, topics: dict[str, str], groups: list[str]) -> list[str]:
        """There was nothing."""
        return []


class Definitions:
    """What the statements so far have defined, and the records that they have `inserted`."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._world = EveryTopic()
        self._properties: dict[str, str] = {}
        self.inserted: list[tuple[str, Stored]] = []
        self.catalogue = SnapshotCatalogue(self._memory)

    def execute(self, parsed: Parsed) -> None:
        """Take in one statement that defines, drops or ends something. Raises `SqlError` and `InvalidInput`."""
        match parsed.statement:
            case t.CreateSource() | t.CreateAs():
                self._decide(with_defaults(parsed, self._properties))
            case t.SetProperty(name=name, value=None):
                self._properties.pop(name, None)
            case t.SetProperty(name=name, value=str(value)):
                self._properties[name] = value
            case t.AlterSource() | t.CreateType() | t.DropType() | t.InsertSelect():
                self._decide(parsed.text)
            case t.Drop(name=name):
                relation = self.catalogue.find(name.text)
                if relation is not None and relation.query:
                    self._stop(relation.query)
                self._decide(parsed.text)
            case t.Control(action="TERMINATE", query=query):
                for each in [query] if query is not None else [name.upper() for name in self._memory.names("pipeline")]:
                    self._stop(each)
                    self._decide(f"TERMINATE `{each}`")
            case t.InsertValues() as statement:
                self._insert(parsed, statement)
            case t.Define() | t.Show() | t.Describe():
                pass
            case statement:
                message = f"a test has no {type(statement).__name__.upper()}"
                raise _refused(
                    parsed, Refusal(statement.at, message, "its statements define streams, tables and queries")
                )

    def _decide(self, text: str) -> None:
        self._memory.apply(self._accepted(text))

    def _accepted(self, text: str) -> tuple[Change, ...]:
        return decide(sql_statement(text), self._memory, self._world).changes

    def _insert(self, parsed: Parsed, statement: t.InsertValues) -> None:
        """Keep the record, by its topic; the run puts it before the case's input."""
        try:
            relation = insertable(statement, self.catalogue)
            key, value, time_ms = record_of(statement, relation)
        except Refusal as refusal:
            raise _refused(parsed, refusal) from None
        self.inserted.append((relation.source.topic, Stored(key, value, time_ms)))

    def _stop(self, query: str) -> None:
        """A query that shall end must not be wanted any more, as the console sees to."""
        name = query.lower()
        if self._memory.get(DESIRED, name) is not None:
            self._memory.apply((Change("put", DESIRED, name, {"state": STOPPED}),))

    def relations(self) -> list[Relation]:
        """All streams and tables."""
        return self.catalogue.all()

    def queries(self) -> Iterator[Query]:
        """The running queries in the order in which they were made, each with one result per record."""
        plans = {pipeline: query for _, pipeline, query in self.catalogue.queries()}
        for pipeline in self._memory.in_order("pipeline"):
            yield replace(plans[pipeline], emission=EVERY_RECORD)


def _refused(parsed: Parsed, refusal: Refusal) -> SqlError:
    return locate(parsed.text, Refusal(refusal.at - parsed.start, refusal.message, refusal.hint))
