"""Streams and tables that statements made one by one, as definitions of the metastore: kind `relation`, by name.

Named types are kind `type`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from pipelines.metastore.command import Change, put
from pipelines.metastore.validate import PIPELINE, RESULT, Definitions, planned_queries, topic_owner
from pipelines.plan import Query, source_from_fields
from pipelines.sql.catalogue import Relation

RELATION, TYPE = "relation", "type"


class SnapshotCatalogue:
    """The relations at one moment, for the planner."""

    def __init__(self, snapshot: Definitions) -> None:
        self.snapshot = snapshot

    def find(self, name: str) -> Relation | None:
        """The relation of this name, if there is one."""
        body = self.snapshot.get(RELATION, name)
        return None if body is None else self._relation(body)

    def names(self) -> list[str]:
        """All names, sorted."""
        return self.snapshot.names(RELATION)

    def all(self) -> list[Relation]:
        """All relations, by name."""
        return [self._relation(body) for body in self.snapshot.all(RELATION).values()]

    def _relation(self, body: dict[str, Any]) -> Relation:
        """The relation of a body, with its query only while that fills it.

        Logs of earlier builds name the query of a dropped pipeline still, and the name may be another pipeline's by now.
        """
        relation = Relation(**{**body, "source": source_from_fields(body["source"])})
        owner = self.snapshot.get(RESULT, relation.source.topic) or {}
        return relation if owner.get("pipeline") == relation.query.lower() else replace(relation, query="")

    def types(self) -> dict[str, str]:
        """The text of every named type."""
        return {name: body["type"] for name, body in self.snapshot.all(TYPE).items()}

    def queries(self) -> Iterator[tuple[str, str, Query]]:
        """Id, pipeline and plan of every query that is deployed, those of files as well.

        The id is the pipeline's name, and for a pipeline of several queries `PIPELINE.QUERY`; upper case.
        """
        for pipeline, body in self.snapshot.all(PIPELINE).items():
            for query in planned_queries(body):
                name = pipeline if len(body["queries"]) == 1 else f"{pipeline}.{query.name}"
                yield name.upper(), pipeline, query

    def users(self, relation: Relation) -> list[str]:
        """Ids of the queries that read the relation or write to its topic, without the one that fills it."""
        return [
            query_id
            for query_id, _, query in self.queries()
            if query_id != relation.query
            and (query.source.name == relation.name or query.output_topic == relation.source.topic)
        ]

    def topic_users(self, relation: Relation) -> list[str]:
        """Who else has to do with the relation's topic: streams and tables, pipelines by their id, its owner."""
        topic = relation.source.topic
        users = [other.name for other in self.all() if other.source.topic == topic and other.name != relation.name]
        for pipeline, body in self.snapshot.all(PIPELINE).items():
            used = {source["topic"] for source in body["sources"]}
            used |= {query.output_topic for query in planned_queries(body)}
            if topic in used and pipeline.upper() != relation.query:
                users.append(pipeline.upper())
        owner = topic_owner(topic, self.snapshot)
        return [*users, owner] if owner else users


def put_relation(relation: Relation) -> Change:
    """The change that adds or replaces it."""
    body = asdict(relation)
    # As it comes back from JSON: a command must read back as it was written.
    body["source"]["columns"] = list(body["source"]["columns"])
    return put(RELATION, relation.name, body)
