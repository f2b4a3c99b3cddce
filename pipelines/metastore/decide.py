"""Whether a statement of SQL may follow everything before it: the planner over the snapshot, then the world.

A query becomes a pipeline of its own, named by its id: `csas_x`, `ctas_x`, `insertquery_n`, or the QUERY_ID given. Its
script spells out what it reads and writes, so it is deployed, run and checked for drift as a pipeline of a file is.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import Any

from pipelines.metastore import script
from pipelines.metastore.command import Change, drop, put
from pipelines.metastore.relations import RELATION, TYPE, SnapshotCatalogue, put_relation
from pipelines.metastore.statement import DROP, SQL, Statement, deploy_script
from pipelines.metastore.validate import (
    DESIRED,
    DROPPED,
    PIPELINE,
    RESULT,
    RUNNING,
    Accepted,
    Definitions,
    World,
    deleted_topic,
    drop_changes,
    kept_topics,
    unknown_pipeline,
    validate,
)
from pipelines.plan import Source
from pipelines.sql import parse_statement
from pipelines.sql import tree as t
from pipelines.sql.catalogue import Relation, require
from pipelines.sql.define import define
from pipelines.sql.error import Refusal, locate, nearest
from pipelines.sql.named_types import OWN, with_types
from pipelines.sql.names import column_name, plan_word
from pipelines.sql.planner import plan_create, plan_insert
from pipelines.sql.printer import print_tree
from pipelines.sql.properties import SOURCE_PROPERTIES, check_properties, read_partitions
from pipelines.sql.types import named_type
from statestore.errors import InvalidInput


def decide(statement: Statement, snapshot: Definitions, world: World) -> Accepted:
    """Accept the statement, whatever its kind, or raise `SqlError`, `InvalidInput` or `InvalidConfig`."""
    if statement.kind != SQL:
        accepted = validate(statement, snapshot, world)
        left = _unfilled(statement.pipeline, SnapshotCatalogue(snapshot)) if statement.kind == DROP else ()
        return replace(accepted, changes=(*accepted.changes, *left))
    parsed = parse_statement(statement.text)
    try:
        return _Decision(snapshot, world).of(parsed.statement)
    except Refusal as refusal:
        error = locate(parsed.text, Refusal(refusal.at - parsed.start, refusal.message, refusal.hint))
    raise error


class _Decision:
    """One statement over one snapshot."""

    def __init__(self, snapshot: Definitions, world: World) -> None:
        self.snapshot = snapshot
        self.world = world
        self.catalogue = SnapshotCatalogue(snapshot)

    def of(self, statement: t.Statement) -> Accepted:
        statement = with_types(statement, self.catalogue.types())
        match statement:
            case t.CreateType():
                return self._create_type(statement)
            case t.DropType():
                return self._drop_type(statement)
            case t.CreateSource():
                return self._create_source(statement)
            case t.AlterSource():
                return self._alter(statement)
            case t.CreateAs():
                return self._create_as(statement)
            case t.InsertSelect():
                return self._insert_select(statement)
            case t.Drop():
                return self._drop(statement)
            case t.Control(action="TERMINATE", query=query) if query is not None:
                return self._terminate(query)
        raise Refusal(statement.at, "the statement defines nothing")

    def _create_type(self, statement: t.CreateType) -> Accepted:
        name, existing = statement.name, self.catalogue.types().get(statement.name.text)
        if existing is not None and statement.if_not_exists:
            return Accepted((), (name.text,))
        if existing is not None or name.text in OWN:
            told = f"Cannot register custom type '{name.text}' since it is already registered with type:"
            raise Refusal(name.at, f"{told} {existing or name.text}", "DROP TYPE it first")
        named_type(statement.type)
        return Accepted((put(TYPE, name.text, {"type": print_tree(statement.type)}),), (name.text,))

    def _drop_type(self, statement: t.DropType) -> Accepted:
        name, known = statement.name, self.catalogue.types()
        if name.text not in known:
            if statement.if_exists:
                return Accepted(())
            raise Refusal(name.at, f"Type {name.text} does not exist.", nearest(name.text, known))
        return Accepted((drop(TYPE, name.text),), (name.text,))

    def _taken(self, statement: t.CreateSource | t.CreateAs) -> bool:
        """Whether the name is taken and IF NOT EXISTS lets that pass. Refuses a name that may not be replaced."""
        existing = self.catalogue.find(statement.name.text)
        if existing is None:
            return False
        if statement.if_not_exists:
            return True
        kind = existing.kind.lower()
        what = f"{kind} {existing.name}"
        if not statement.or_replace:
            told = f"Cannot add {statement.kind.lower()} '{existing.name}': A {kind} with the same name already exists"
            raise Refusal(
                statement.name.at, f"{what} exists already: {told}", "use CREATE OR REPLACE, or IF NOT EXISTS"
            )
        if isinstance(statement, t.CreateAs) and existing.query and self.world.replaces_queries:
            return False
        if isinstance(statement, t.CreateSource) and not existing.query:
            # Queries that read it go on with the columns that they were planned with.
            return False
        if existing.query or self.catalogue.users(existing):
            hint = "DROP it and create it anew"
            raise Refusal(statement.name.at, f"{what} is used by queries and cannot be replaced", hint)
        return False

    def _create_source(self, statement: t.CreateSource) -> Accepted:
        relation = define(statement)
        replaced = self.catalogue.find(relation.name)
        if self._taken(statement):
            return Accepted((), (relation.name,))
        if replaced is not None and self.catalogue.users(replaced):
            _require_upgrade(replaced, relation, statement)
        given = check_properties(statement.properties, SOURCE_PROPERTIES)
        self.world.require_topic(relation.source.topic, read_partitions(given))
        kept = kept_topics([relation.source.topic], self.snapshot)
        return Accepted((*kept, put_relation(relation)), (relation.name,))

    def _alter(self, statement: t.AlterSource) -> Accepted:
        """The statement that made it, with more columns. Queries go on with those that they were planned with."""
        relation = require(self.catalogue, statement.name, statement.kind.lower())
        if relation.kind != statement.kind:
            told = f"Incompatible data source type is {relation.kind}, but statement was ALTER {statement.kind}"
            raise Refusal(statement.name.at, told, f"write ALTER {relation.kind}")
        made = parse_statement(relation.sql).statement
        if not isinstance(made, t.CreateSource):
            hint = "select them: CREATE OR REPLACE"
            raise Refusal(statement.at, "ALTER command is not supported for CREATE ... AS statements.", hint)
        known = {column.name for column in relation.source.columns}
        for column in statement.columns:
            if column.name.text in known:
                told = f"Cannot add column `{column.name.text}` to schema. A column with the same name already exists."
                raise Refusal(column.at, told)
            known.add(column_name(column.name))
        columns = (*(made.columns or ()), *statement.columns)
        return self._create_source(replace(made, columns=columns, or_replace=True, if_not_exists=False))

    def _create_as(self, statement: t.CreateAs) -> Accepted:
        if self._taken(statement):
            return Accepted((), (statement.name.text,))
        topic, tasks = statement.name.text, self.world.default_tasks
        replaced = self.catalogue.find(statement.name.text)
        planned = plan_create(statement, self.catalogue, topic=topic, tasks=tasks)
        if replaced is not None:
            _require_upgrade(replaced, planned.relation, statement)
        others = (r for r in self.catalogue.all() if replaced is None or r.name != replaced.name)
        if any(r.source.topic == planned.query.output_topic for r in others):
            hint = "choose another with KAFKA_TOPIC"
            message = f"topic '{planned.query.output_topic}' is another stream's or table's"
            raise Refusal(statement.name.at, message, hint)
        pipeline = query_pipeline(statement)
        plain = replace(script.with_topic(statement, topic), or_replace=False, if_not_exists=False)
        source = require(self.catalogue, statement.query.source.name)
        changes = self._deployed(plain, [source], pipeline, replaced=replaced is not None)
        relation = replace(planned.relation, query=pipeline.upper())
        return Accepted((*changes, put_relation(relation)), (relation.name, pipeline.upper()))

    def _insert_select(self, statement: t.InsertSelect) -> Accepted:
        taken = self.snapshot.names(PIPELINE)
        number = next(n for n in range(len(taken) + 1) if f"insertquery_{n}" not in taken)
        planned = plan_insert(statement, self.catalogue, name=f"insertquery_{number}")
        pipeline = planned.query.name
        if pipeline in taken:
            raise InvalidInput("query exists already", query=pipeline.upper(), hint="choose another QUERY_ID")
        source, target = require(self.catalogue, statement.query.source.name), planned.relation
        named = script.with_query_id(statement, pipeline)
        changes = self._deployed(named, [source, *([target] if target != source else [])], pipeline)
        # The topic stays its first writer's.
        kept = tuple(change for change in changes if change.kind != RESULT)
        return Accepted(kept, (target.name, pipeline.upper()))

    def _deployed(
        self, statement: script.Filling, relations: list[Relation], pipeline: str, *, replaced: bool = False
    ) -> tuple[Change, ...]:
        """The changes of deploying the query's script, wanted to run at once."""
        text = script.script_of(statement, relations)
        known: Definitions = _Without(self.snapshot, pipeline) if replaced else self.snapshot
        shares = replaced or isinstance(statement, t.InsertSelect)
        changes = validate(deploy_script(text, pipeline), known, self.world, shares_results=shares).changes
        wanted = put(DESIRED, pipeline, {"state": RUNNING})
        return tuple(wanted if change.kind == DESIRED else change for change in changes)

    def _drop(self, statement: t.Drop) -> Accepted:
        relation = droppable(statement, self.catalogue)
        if relation is None:
            return Accepted(())
        changes: tuple[Change, ...] = ()
        if relation.query:
            changes = drop_changes(relation.query.lower(), self.snapshot).changes
        topic = relation.source.topic
        if statement.delete_topic and (topic_id := self.world.topic_id(topic)):
            # Noted, so that a drop that is killed now does not leave it for good.
            changes += (put(DROPPED, deleted_topic(topic), {"topics": {topic: topic_id}, "groups": []}),)
        return Accepted((*changes, drop(RELATION, relation.name)), (relation.name,))

    def _terminate(self, query: str) -> Accepted:
        pipeline = query.lower()
        if self.snapshot.get(PIPELINE, pipeline) is None:
            raise unknown_pipeline(pipeline, self.snapshot.names(PIPELINE))
        changes = drop_changes(pipeline, self.snapshot).changes
        return Accepted((*changes, *_unfilled(pipeline, self.catalogue)), (query,))


class _Without:
    """The definitions without the pipeline that is replaced."""

    def __init__(self, snapshot: Definitions, pipeline: str) -> None:
        self._snapshot = snapshot
        self._pipeline = pipeline

    def get(self, kind: str, name: str) -> Any:
        """A definition's body, None for the pipeline that is replaced."""
        return None if kind == PIPELINE and name == self._pipeline else self._snapshot.get(kind, name)

    def all(self, kind: str) -> dict[str, Any]:
        """Every definition of a kind, by name."""
        return self._snapshot.all(kind)

    def names(self, kind: str) -> list[str]:
        """Their names."""
        return self._snapshot.names(kind)


def _unfilled(pipeline: str, catalogue: SnapshotCatalogue) -> tuple[Change, ...]:
    """What a pipeline that goes has filled stays, and nothing fills it any more."""
    return tuple(put_relation(replace(r, query="")) for r in catalogue.all() if r.query == pipeline.upper())


def droppable(statement: t.Drop, catalogue: SnapshotCatalogue) -> Relation | None:
    """What the statement drops; None if there is nothing and IF EXISTS lets that pass. Refuses what is in use."""
    if statement.if_exists and catalogue.find(statement.name.text) is None:
        return None
    relation = require(catalogue, statement.name, statement.kind.lower())
    if relation.kind != statement.kind:
        raise Refusal(statement.name.at, f"{relation.name} is a {relation.kind.lower()}", f"write DROP {relation.kind}")
    if users := ", ".join(catalogue.users(relation)):
        hint = "TERMINATE them first"
        told = f"Cannot drop {relation.name}. The following queries read from this source or write to it: [{users}]"
        raise InvalidInput(f"queries use it: {told}", name=relation.name, queries=users, hint=hint)
    if statement.delete_topic and (users := ", ".join(catalogue.topic_users(relation))):
        topic = relation.source.topic
        told = f"Refusing to delete topic. Found other data sources ({users}) using topic {topic}"
        raise InvalidInput(told, topic=topic, users=users, hint="leave out DELETE TOPIC, or drop them first")
    return relation


def _require_upgrade(old: Relation, new: Relation, statement: t.CreateSource | t.CreateAs) -> None:
    """What replaces a stream or table in use may add columns behind the old ones, and change neither them nor the key."""
    if old.kind != new.kind:
        told = f"Cannot add {new.kind.lower()} '{new.name}': A {old.kind.lower()} with the same name already exists"
        raise Refusal(statement.name.at, told)
    before, after = ([(c.name, c.type) for c in r.source.columns if not c.key] for r in (old, new))
    keys = [[(c.name, c.type) for c in r.source.columns if c.key] for r in (old, new)]
    changed = [name for (name, type_), now in zip_longest(before, after[: len(before)]) if (name, type_) != now]
    if _encoding(old.source) != _encoding(new.source):
        told = f"Cannot upgrade data source: `{new.name}`. Its topic, format or window would be another"
        raise Refusal(statement.name.at, told)
    if changed or keys[0] != keys[1]:
        told = f"Cannot upgrade data source: `{new.name}`. The following columns are changed, missing or reordered"
        raise Refusal(statement.name.at, f"{told}: {changed or [name for name, _ in keys[0]]}")


def _encoding(source: Source) -> Source:
    """How records are written: queries go on with what they were planned with. Which time is a row's, they alone see."""
    return replace(source, columns=(), timestamp=None, timestamp_format=None)


def query_pipeline(statement: t.CreateAs) -> str:
    """The pipeline that CREATE … AS makes."""
    return f"{'csas' if statement.kind == t.STREAM else 'ctas'}_{plan_word(statement.name.text)}"
