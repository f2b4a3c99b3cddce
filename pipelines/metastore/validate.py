"""Whether a statement may follow everything before it, and what it then changes.

`validate` is the one place that decides. It sees the definitions as they are after every earlier command; only when
they allow the statement does it ask the world (Kafka's topics) and make what the definition needs there. What it gives
is complete, so nothing is decided again when the command is replayed.

Definitions by kind:

    pipeline   <name>    {"sql", "sources": [{name, topic}], "queries": [{plan, batches_topic_id, changelog_topic_id}],
                          "deployed_at"}, of a clone also "origin": whose copy it is
    desired    <name>    {"state": "running" or "stopped"}
    result     <topic>   {"pipeline"}: who alone writes this topic, INSERT INTO apart
    relation   <NAME>    a stream or table that one statement made: see `relations.py`
    dropped    <name>    {"topics": {topic: id}, "groups": […]}: what a dropped pipeline left and nobody needs; for
                         DROP … DELETE TOPIC the name is `topic <topic>`, which is no pipeline's
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipelines import names
from pipelines.metastore.command import Change, drop, put
from pipelines.metastore.statement import DEPLOY, KINDS, SQL, START, STOP, Statement
from pipelines.plan import Query, plan_hash, query_from_json
from pipelines.resolve import resolved_as
from pipelines.sql import Pipeline, parse_pipeline, parse_statement
from statestore.errors import InvalidInput

PIPELINE, DESIRED, RESULT, DROPPED = "pipeline", "desired", "result", "dropped"
RUNNING, STOPPED = "running", "stopped"


class Definitions(Protocol):
    """The definitions at one moment."""

    def get(self, kind: str, name: str) -> Any:
        """A definition's body, None if there is none."""

    def all(self, kind: str) -> dict[str, Any]:
        """Every definition of a kind, by name."""

    def names(self, kind: str) -> list[str]:
        """Their names."""


class World(Protocol):
    """What a definition needs outside of the metastore. Everything is safe to do twice.

    `replaces_queries` is whether CREATE OR REPLACE … AS may replace a running query.
    """

    default_tasks: int
    replaces_queries: bool

    def require_sources(self, topics: list[str]) -> None:
        """Raises `InvalidConfig` unless the topics exist."""

    def require_topic(self, topic: str, partitions: int | None) -> None:
        """Make sure of the topic of a stream or table: without `partitions` it must exist. Raises `InvalidConfig`."""

    def topic_id(self, topic: str) -> str:
        """The topic's id, empty if there is no such topic."""

    def create_topics(self, pipeline: str, query: Query) -> dict[str, str]:
        """Make the query's topics; gives its plan and their ids, as the definition keeps them."""

    def remove(self, topics: dict[str, str], groups: list[str]) -> list[str]:
        """Delete the topics that still have the given ids, and the groups; gives the names of what was deleted."""


@dataclass(frozen=True)
class Accepted:
    """The changes that an accepted statement makes. None: everything is already as it says, so nothing is written."""

    changes: tuple[Change, ...]
    names: tuple[str, ...] = ()


def check(statement: Statement, default_tasks: int) -> None:
    """Refuse what no snapshot could make right, before other writers are disturbed. Raises `SqlError`, `InvalidInput`."""
    if statement.kind == SQL:
        parse_statement(statement.text)
        return
    names.require_name(statement.pipeline, "pipeline")
    if statement.kind not in KINDS:
        raise InvalidInput("statement is of an unknown kind", kind=statement.kind, known=", ".join(KINDS))
    if statement.kind == DEPLOY:
        parse_pipeline(statement.text, pipeline=statement.pipeline, default_tasks=default_tasks)


def validate(statement: Statement, snapshot: Definitions, world: World, *, shares_results: bool = False) -> Accepted:
    """Accept the statement, or raise `SqlError`, `InvalidInput` or `InvalidConfig`.

    A deployment with `shares_results` may write topics that other pipelines write, as INSERT INTO does.
    """
    check(statement, world.default_tasks)
    if statement.kind == DEPLOY:
        return _deploy(statement, snapshot, world, shares_results=shares_results)
    if snapshot.get(PIPELINE, statement.pipeline) is None:
        raise unknown_pipeline(statement.pipeline, snapshot.names(PIPELINE))
    if statement.kind in (START, STOP):
        return _desire(statement.pipeline, RUNNING if statement.kind == START else STOPPED, snapshot)
    return drop_changes(statement.pipeline, snapshot)


def unknown_pipeline(name: str, known: list[str]) -> InvalidInput:
    """The error for a pipeline that is not there, with those that are."""
    deployed = ", ".join(known) or "none is deployed"
    return InvalidInput("pipeline is not deployed", pipeline=name, deployed=deployed, hint="run `rollforward deploy`")


def _deploy(statement: Statement, snapshot: Definitions, world: World, *, shares_results: bool) -> Accepted:
    pipeline = statement.pipeline
    parsed = parse_pipeline(statement.text, pipeline=pipeline, default_tasks=world.default_tasks)
    for query in parsed.queries:
        names.require_name(query.name, "query")
    existing = snapshot.get(PIPELINE, pipeline)
    if existing is not None:
        if _same(parsed.queries, planned_queries(existing)):
            return Accepted(())
        raise InvalidInput(
            "pipeline is deployed with other statements", pipeline=pipeline, hint="deploy it under another name"
        )
    for query in parsed.queries:
        require_writable(query.output_topic, snapshot)
    if not shares_results:
        _require_free_results(parsed, snapshot)
    world.require_sources([source.topic for source in parsed.sources])
    return _deployed(statement, parsed, snapshot, world)


def _deployed(statement: Statement, parsed: Pipeline, snapshot: Definitions, world: World) -> Accepted:
    left = snapshot.get(DROPPED, parsed.name)
    if left is not None:
        # A drop that was killed behind its commit: the new pipeline must not begin with that state.
        world.remove(left["topics"], left["groups"])
    body = {
        "sql": statement.text,
        "sources": [{"name": source.name, "topic": source.topic} for source in parsed.sources],
        "queries": [world.create_topics(parsed.name, query) for query in parsed.queries],
        "deployed_at": time.time(),
    }
    if statement.origin:
        body["origin"] = statement.origin
    changes = [put(PIPELINE, parsed.name, body), put(DESIRED, parsed.name, {"state": STOPPED})]
    changes += [put(RESULT, query.output_topic, {"pipeline": parsed.name}) for query in parsed.queries]
    if left is not None:
        changes.append(drop(DROPPED, parsed.name))
    used = (*(source.topic for source in parsed.sources), *(query.output_topic for query in parsed.queries))
    changes += kept_topics(used, snapshot)
    return Accepted(tuple(changes), tuple(query.name for query in parsed.queries))


def _same(parsed: Sequence[Query], deployed: Sequence[Query]) -> bool:
    """Whether the statements are the deployed ones."""
    if len(parsed) != len(deployed):
        return False
    pairs = zip(parsed, deployed, strict=True)
    return all(plan_hash(resolved_as(new, old)) == plan_hash(old) for new, old in pairs)


def _require_free_results(parsed: Pipeline, snapshot: Definitions) -> None:
    """Two writers of one topic would mix their results, and a clone's would be there twice."""
    # Those of INSERT INTO own no topic.
    written = [
        (query.output_topic, name) for name, body in snapshot.all(PIPELINE).items() for query in planned_queries(body)
    ]
    for topic in (query.output_topic for query in parsed.queries):
        owner = snapshot.get(RESULT, topic)
        writers = [] if owner is None else [owner["pipeline"]]
        writers += (name for target, name in written if target == topic)
        other = next((name for name in writers if name != parsed.name), None)
        if other is not None:
            raise InvalidInput(
                "result topic belongs to another pipeline",
                topic=topic,
                pipeline=other,
                hint="choose another topic with kafka_topic",
            )


def planned_queries(body: dict[str, Any]) -> list[Query]:
    """The queries of a deployed pipeline's body."""
    return [query_from_json(stored["plan"]) for stored in body["queries"]]


def topic_owner(topic: str, snapshot: Definitions) -> str:
    """Whose state or dead letters the topic holds: a deployed pipeline's, or the metastore's. Empty for nobody's."""
    if topic.startswith(names.METASTORE_PREFIX):
        return "metastore"
    # The name of a pipeline has no `-`, and its topics have one behind it.
    pipeline = topic.partition("-")[0]
    body = snapshot.get(PIPELINE, pipeline)
    if body is None:
        return ""
    queries = (query.name for query in planned_queries(body))
    return pipeline if topic in names.own_topics(pipeline, queries) else ""


def require_writable(topic: str, snapshot: Definitions) -> None:
    """Refuse a topic that nobody but its owner may write. To read it is allowed."""
    if owner := topic_owner(topic, snapshot):
        raise InvalidInput(
            "topic holds state, commands or dead letters, which only their owner writes",
            topic=topic,
            owner=owner,
            hint="choose another topic",
        )


def deleted_topic(topic: str) -> str:
    """The name under which DROP … DELETE TOPIC notes the topic."""
    return f"topic {topic}"


def kept_topics(topics: Iterable[str], snapshot: Definitions) -> list[Change]:
    """What is used again is not deleted any more, though the DROP … DELETE TOPIC was killed before it could."""
    noted = sorted({deleted_topic(topic) for topic in topics})
    return [drop(DROPPED, name) for name in noted if snapshot.get(DROPPED, name) is not None]


def _desire(pipeline: str, state: str, snapshot: Definitions) -> Accepted:
    now = snapshot.get(DESIRED, pipeline) or {}
    return Accepted(() if now.get("state") == state else (put(DESIRED, pipeline, {**now, "state": state}),))


def drop_changes(pipeline: str, snapshot: Definitions) -> Accepted:
    """The pipeline goes, what it leaves in Kafka is noted. Raises `InvalidInput` while it is to run."""
    if (snapshot.get(DESIRED, pipeline) or {}).get("state") == RUNNING:
        raise InvalidInput(
            "pipeline is to run", pipeline=pipeline, hint=f"run `rollforward stop {pipeline}` before dropping it"
        )
    body = snapshot.get(PIPELINE, pipeline)
    left: dict[str, Any] = {"topics": {}, "groups": []}
    changes = [drop(PIPELINE, pipeline)]
    # Several queries of a pipeline may write one topic.
    results: set[str] = set()
    if snapshot.get(DESIRED, pipeline) is not None:
        changes.append(drop(DESIRED, pipeline))
    for stored in body["queries"]:
        query = query_from_json(stored["plan"])
        left["topics"][names.batches_topic(pipeline, query.name)] = stored["batches_topic_id"]
        left["topics"][names.changelog_topic(pipeline, query.store)] = stored["changelog_topic_id"]
        left["groups"].append(names.group(pipeline, query.name))
        results.add(query.output_topic)
    # A topic that another pipeline owns, and this one's INSERT INTO shares, stays that one's.
    owned = [topic for topic in sorted(results) if (snapshot.get(RESULT, topic) or {}).get("pipeline") == pipeline]
    changes += [drop(RESULT, topic) for topic in owned]
    return Accepted((*changes, put(DROPPED, pipeline, left)))
