"""Streams and tables that statements made one by one, as definitions of the metastore: kind `relation`, by name.

Named types are kind `type`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pipelines.metastore.command import Change, put
from pipelines.metastore.validate import PIPELINE, Definitions
from pipelines.plan import Query, query_from_json, source_from_fields
from pipelines.sql.catalogue import Relation

RELATION, TYPE = "relation", "type"


class SnapshotCatalogue:
    """The relations at one moment, for the planner."""

    def __init__(self, snapshot: Definitions) -> None:
        self._snapshot = snapshot

    def find(self, name: str) -> Relation | None:
        """The relation of this name, if there is one."""
        body = self._snapshot.get(RELATION, name)
        return None if body is None else _relation(body)

    def names(self) -> list[str]:
        """All names, sorted."""
        return self._snapshot.names(RELATION)

    def all(self) -> list[Relation]:
        """All relations, by name."""
        return [_relation(body) for body in self._snapshot.all(RELATION).values()]

    def types(self) -> dict[str, str]:
        """The text of every named type."""
        return {name: body["type"] for name, body in self._snapshot.all(TYPE).items()}

    def queries(self) -> Iterator[tuple[str, str, Query]]:
        """Id, pipeline and plan of every query that is deployed, those of files as well.

        The id is the pipeline's name, and for a pipeline of several queries `PIPELINE.QUERY`; upper case.
        """
        for pipeline, body in self._snapshot.all(PIPELINE).items():
            for stored in body["queries"]:
                query = query_from_json(stored["plan"])
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


def put_relation(relation: Relation) -> Change:
    """The change that adds or replaces it."""
    body = asdict(relation)
    # As it comes back from JSON: a command must read back as it was written.
    body["source"]["columns"] = list(body["source"]["columns"])
    return put(RELATION, relation.name, body)


def _relation(body: dict[str, Any]) -> Relation:
    return Relation(**{**body, "source": source_from_fields(body["source"])})
