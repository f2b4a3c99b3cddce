"""Executes statements on the registry and on deployed pipelines."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipelines.console import describe, script
from pipelines.console.definitions import Definitions
from pipelines.console.deployments import Deployments
from pipelines.console.pull import plan_pull
from pipelines.console.result import Result
from pipelines.console.values import record_of
from pipelines.deploy import DeployedQuery
from pipelines.plan import Query as Plan
from pipelines.query import StoreReader
from pipelines.registry import Registry
from pipelines.settings import Settings
from pipelines.sql import Parsed
from pipelines.sql import tree as t
from pipelines.sql.catalogue import Relation, require
from pipelines.sql.define import define
from pipelines.sql.error import Refusal, locate
from pipelines.sql.names import Name
from pipelines.sql.planner import Planned, plan_create, plan_insert
from pipelines.sql.properties import SOURCE_PROPERTIES, check_properties, read_partitions
from statestore.errors import InvalidConfig, InvalidInput
from statestore.kafka import Admin, TransactionalProducer
from statestore.store import Isolation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RegistryExecutor:
    """One statement at a time. `spark` gives a session where EXPLAIN needs one; `stop` ends a pipeline's driver."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        stop: Callable[[str], object],
        spark: Callable[[], SparkSession],
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._definitions = Definitions(settings.metastore)
        self._deployments = Deployments(settings, registry, stop)
        self._spark = spark

    def close(self) -> None:
        """Release the connections."""
        self._definitions.close()

    def names(self) -> tuple[str, ...]:
        """Streams, tables and query ids."""
        return (*self._definitions.names(), *self._deployments.queries())

    def execute(self, parsed: Parsed, properties: dict[str, str]) -> Result:
        """Execute one statement. Raises `SqlError` for it, `RollforwardError` for what is outside."""
        try:
            return self._execute(parsed.statement, properties)
        except Refusal as refusal:
            error = locate(parsed.text, replace_at(refusal, parsed))
        raise error

    def _execute(self, statement: t.Statement, properties: dict[str, str]) -> Result:
        match statement:
            case t.CreateSource():
                return self._create_source(statement)
            case t.CreateAs():
                return self._create_as(statement)
            case t.InsertSelect():
                return self._insert_select(statement)
            case t.InsertValues():
                return self._insert_values(statement)
            case t.Drop():
                return self._drop(statement)
            case t.Control():
                return self._control(statement)
            case t.Show():
                return describe.show(statement, self._definitions, self._deployments, self._settings)
            case t.Describe():
                return self._describe(statement)
            case t.Explain():
                return self._explain(statement)
            case t.Query():
                return self._pull(statement.select, properties)
        raise Refusal(statement.at, "the statement is not executed here")

    # Definitions.

    def _exists(self, statement: t.CreateSource | t.CreateAs) -> Result | None:
        """What there is to say if the name is taken: IF NOT EXISTS answers, OR REPLACE goes on, else it is refused."""
        existing = self._definitions.find(statement.name.text)
        if existing is None:
            return None
        if statement.if_not_exists:
            return Result(f"{existing.kind.lower()} {existing.name} exists already")
        if not statement.or_replace:
            hint = "use CREATE OR REPLACE, or IF NOT EXISTS"
            raise Refusal(statement.name.at, f"a {existing.kind.lower()} {existing.name} exists already", hint)
        if existing.query or self._readers(existing.name):
            hint = "DROP it and create it anew"
            raise Refusal(statement.name.at, f"{existing.name} is used by queries and cannot be replaced", hint)
        return None

    def _create_source(self, statement: t.CreateSource) -> Result:
        relation = define(statement)
        if (told := self._exists(statement)) is not None:
            return told
        admin = Admin(self._settings.kafka_config())
        if relation.source.topic not in admin.describe([relation.source.topic]):
            partitions = read_partitions(check_properties(statement.properties, SOURCE_PROPERTIES))
            if partitions is None:
                hint = "create it, or give PARTITIONS and it is created"
                raise InvalidConfig("topic does not exist", topic=relation.source.topic, hint=hint)
            replication = self._settings.replication_factor
            wanted = {"message.timestamp.type": "CreateTime"}
            admin.create(relation.source.topic, partitions=partitions, settings=wanted, replication=replication)
        self._definitions.put(relation)
        return Result(f"{relation.kind.lower()} {relation.name} created over topic {relation.source.topic}")

    def _create_as(self, statement: t.CreateAs) -> Result:
        if (told := self._exists(statement)) is not None:
            return told
        statement = replace(script.with_topic(statement, statement.name.text), or_replace=False, if_not_exists=False)
        topic = statement.name.text
        planned = plan_create(statement, self._definitions, topic=topic, tasks=self._settings.tasks)
        kind = "csas" if statement.kind == t.STREAM else "ctas"
        pipeline = f"{kind}_{planned.query.name}"
        source = require(self._definitions, statement.query.source.name)
        self._deploy(statement, planned, [source], pipeline)
        self._definitions.put(replace(planned.relation, query=pipeline.upper()))
        return _deployed(f"{statement.kind.lower()} {planned.relation.name}", pipeline)

    def _insert_select(self, statement: t.InsertSelect) -> Result:
        taken = self._deployments.queries()
        number = next(n for n in range(len(taken) + 1) if f"INSERTQUERY_{n}" not in taken)
        planned = plan_insert(statement, self._definitions, name=f"insertquery_{number}")
        pipeline = planned.query.name
        if pipeline.upper() in taken:
            raise InvalidInput("query exists already", query=pipeline.upper(), hint="choose another QUERY_ID")
        source = require(self._definitions, statement.query.source.name)
        self._deploy(script.with_query_id(statement, pipeline), planned, [source, planned.relation], pipeline)
        return _deployed(f"rows of {source.name} go to {planned.relation.name}", pipeline)

    def _deploy(self, statement: script.Filling, planned: Planned, relations: list[Relation], pipeline: str) -> None:
        unique = list({relation.name: relation for relation in relations}.values())
        self._deployments.deploy(script.script_of(statement, unique), pipeline)

    def _insert_values(self, statement: t.InsertValues) -> Result:
        relation = require(self._definitions, statement.name)
        if relation.query and relation.kind == t.TABLE:
            raise Refusal(statement.name.at, f"{relation.name} is filled by {relation.query}")
        key, value, time_ms = record_of(statement, relation)
        producer = TransactionalProducer(self._settings.kafka_config(), f"rollforward-insert-{uuid.uuid4()}")
        try:
            producer.init()
            producer.begin()
            producer.produce(relation.source.topic, key=key, value=value, timestamp_ms=time_ms)
            producer.flush()
            producer.commit()
        finally:
            producer.close()
        return Result(f"one record written to topic {relation.source.topic}")

    def _readers(self, name: str) -> list[str]:
        """Ids of the queries that read the relation, or insert into it."""
        relation = self._definitions.find(name)
        assert relation is not None
        topic = relation.source.topic
        return [
            query_id
            for query_id, deployed in self._deployments.queries().items()
            if query_id != relation.query and topic in (deployed.query.source.topic, deployed.query.output_topic)
        ]

    def _drop(self, statement: t.Drop) -> Result:
        relation = self._definitions.find(statement.name.text)
        if relation is None and statement.if_exists:
            return Result(f"there is no {statement.kind.lower()} {statement.name.text}")
        relation = require(self._definitions, statement.name, statement.kind.lower())
        if relation.kind != statement.kind:
            hint = f"write DROP {relation.kind}"
            raise Refusal(statement.name.at, f"{relation.name} is a {relation.kind.lower()}", hint)
        if readers := self._readers(relation.name):
            raise InvalidInput(
                "queries use it", name=relation.name, queries=", ".join(readers), hint="TERMINATE them first"
            )
        if relation.query:
            self._deployments.drop(relation.query.lower())
        self._definitions.drop(relation.name)
        if statement.delete_topic:
            Admin(self._settings.kafka_config()).delete([relation.source.topic])
        topic = f"topic {relation.source.topic} {'deleted' if statement.delete_topic else 'stays'}"
        return Result(f"{relation.kind.lower()} {relation.name} dropped, {topic}")

    def _control(self, statement: t.Control) -> Result:
        queries = self._deployments.queries()
        wanted = list(queries) if statement.query is None else [statement.query]
        for query_id in wanted:
            pipeline = self._deployments.query(query_id).pipeline
            if statement.action == "TERMINATE":
                self._deployments.drop(pipeline)
                self._forget(query_id)
            else:
                self._deployments.want(pipeline, running=statement.action == "RESUME")
        done = {"TERMINATE": "terminated", "PAUSE": "paused", "RESUME": "resumed"}[statement.action]
        return Result(f"{done}: {', '.join(wanted) or 'there was no query'}")

    def _forget(self, query_id: str) -> None:
        for relation in self._definitions.all():
            if relation.query == query_id:
                self._definitions.put(replace(relation, query=""))

    # Looking.

    def _describe(self, statement: t.Describe) -> Result:
        if statement.function:
            return describe.describe_function(statement.name)
        relation = require(self._definitions, statement.name)
        readers = self._readers(relation.name) if statement.extended else []
        return describe.describe_relation(relation, readers, extended=statement.extended)

    def _explain(self, statement: t.Explain) -> Result:
        from pipelines.console.explain import explain_rows, spark_plan

        if statement.statement is None:
            deployed = self._deployments.query(statement.query or "")
            query, pipeline = deployed.query, deployed.pipeline
        else:
            query = self._planned(statement.statement)
            pipeline = "PIPELINE"
        text = spark_plan(query, self._spark())
        return Result(columns=("property", "value"), rows=[*explain_rows(query, pipeline), ("spark plan", text)])

    def _planned(self, statement: t.Statement) -> Plan:
        tasks = self._settings.tasks
        match statement:
            case t.CreateAs():
                return plan_create(statement, self._definitions, topic=statement.name.text, tasks=tasks).query
            case t.InsertSelect():
                return plan_insert(statement, self._definitions, name="insertquery").query
            case t.Query(select=select) if select.emit is not None:
                kind = t.TABLE if select.group_by is not None else t.STREAM
                named = t.CreateAs(kind, Name("EXPLAINED", "explained", select.at), None, select)
                return plan_create(named, self._definitions, topic="EXPLAINED", tasks=tasks).query
        raise Refusal(statement.at, "EXPLAIN takes a continuous query", "CREATE … AS, INSERT INTO … SELECT, or its id")

    def _pull(self, select: t.Select, properties: dict[str, str]) -> Result:
        if select.emit is not None:
            raise Refusal(select.emit_at, "push queries are not supported yet", "leave EMIT out to pull from a table")
        relation = require(self._definitions, select.source.name, "table")
        deployed = self._filled(relation, select)
        pull = plan_pull(select, relation, deployed.query)
        isolation = Isolation(properties.get("isolation.level", "read_committed"))
        store = StoreReader(deployed, self._settings, self._registry)
        rows: Any = pull.rows(store, isolation)
        return Result(columns=pull.names, rows=rows)

    def _filled(self, relation: Relation, select: t.Select) -> DeployedQuery:
        if relation.kind != t.TABLE or not relation.query:
            hint = "only a table that CREATE TABLE … AS SELECT fills has a store"
            raise Refusal(select.source.name.at, f"{relation.name} cannot be pulled from", hint)
        return self._deployments.query(relation.query)


def replace_at(refusal: Refusal, parsed: Parsed) -> Refusal:
    """The refusal with its offset counted from the statement's beginning, as in `parsed.text`."""
    return Refusal(refusal.at - parsed.start, refusal.message, refusal.hint)


def _deployed(what: str, pipeline: str) -> Result:
    return Result(f"{what}: query {pipeline.upper()} is deployed; Dagster starts it, or: rollforward start {pipeline}")
