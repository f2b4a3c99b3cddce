"""Executes statements on the metastore, on the stores of running queries, and on Kafka.

What defines or drops is one command of the metastore's log; everything else only looks, or writes one record.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipelines.console import describe
from pipelines.console.pull import plan_pull
from pipelines.console.result import Result
from pipelines.console.values import insertable, record_of
from pipelines.deploy import DeployedQuery, deployed_queries
from pipelines.metastore.decide import droppable, query_pipeline
from pipelines.metastore.embedded import execute, refresh, want
from pipelines.metastore.projection import Snapshot
from pipelines.metastore.relations import SnapshotCatalogue
from pipelines.metastore.statement import sql_statement
from pipelines.metastore.validate import require_writable
from pipelines.plan import Query as Plan
from pipelines.query import StoreReader
from pipelines.registry import RUNNING, STOPPED, Registry
from pipelines.settings import Settings
from pipelines.sql import Parsed
from pipelines.sql import tree as t
from pipelines.sql.catalogue import Relation, require
from pipelines.sql.defaults import with_defaults
from pipelines.sql.error import Refusal, locate
from pipelines.sql.named_types import with_types
from pipelines.sql.names import Name
from pipelines.sql.planner import plan_create, plan_insert
from statestore.errors import InvalidInput
from statestore.kafka.producer import ABORT_S, TransactionalProducer
from statestore.store import Isolation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class MetastoreExecutor:
    """One statement at a time. `spark` gives a session where EXPLAIN needs one.

    `end` waits until the driver of a pipeline that is no longer to run has ended, and removes its local state.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        end: Callable[[str], object],
        spark: Callable[[], SparkSession],
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._end = end
        self._spark = spark

    @contextmanager
    def _catalogue(self) -> Iterator[SnapshotCatalogue]:
        with self._registry.engine.connect() as connection:
            yield SnapshotCatalogue(Snapshot(connection))

    def names(self) -> tuple[str, ...]:
        """Streams, tables and query ids."""
        with self._catalogue() as catalogue:
            return (*catalogue.names(), *(query_id for query_id, _, _ in catalogue.queries()))

    def execute(self, parsed: Parsed, properties: dict[str, str]) -> Result:
        """Execute one statement. Raises `SqlError` for it, `RollforwardError` for what is outside."""
        try:
            return self._execute(parsed, properties)
        except Refusal as refusal:
            error = locate(parsed.text, Refusal(refusal.at - parsed.start, refusal.message, refusal.hint))
        raise error

    def _execute(self, parsed: Parsed, properties: dict[str, str]) -> Result:
        statement = parsed.statement
        match statement:
            case t.CreateSource():
                text = with_defaults(parsed, properties)
                return self._changed(text, "", f"{statement.kind.lower()} {statement.name.text}")
            case t.CreateAs():
                what = f"{statement.kind.lower()} {statement.name.text}"
                return self._changed(with_defaults(parsed, properties), query_pipeline(statement), what)
            case t.InsertSelect():
                return self._changed(parsed.text, "", f"rows for {statement.name.text}")
            case t.AlterSource():
                return self._changed(parsed.text, "", f"{statement.kind.lower()} {statement.name.text}")
            case t.CreateType():
                return self._changed(parsed.text, "", f"type {statement.name.text}")
            case t.DropType():
                outcome = execute(sql_statement(parsed.text), self._settings)
                gone = "is dropped" if outcome.changed else "does not exist, nothing changed"
                return Result(f"type {statement.name.text} {gone}")
            case t.InsertValues():
                return self._insert_values(statement)
            case t.Drop():
                return self._drop(statement, parsed)
            case t.Control():
                return self._control(statement)
        refresh(self._settings)
        with self._catalogue() as catalogue:
            return self._look(statement, properties, catalogue)

    def _look(self, statement: t.Statement, properties: dict[str, str], catalogue: SnapshotCatalogue) -> Result:
        match statement:
            case t.Show():
                desired = {row.name: row.desired for row in self._registry.pipelines()}
                return describe.show(statement, catalogue, desired, self._settings)
            case t.Describe(function=True):
                return describe.describe_function(statement.name)
            case t.Describe():
                relation = require(catalogue, statement.name)
                users = catalogue.users(relation) if statement.extended else []
                return describe.describe_relation(relation, users, extended=statement.extended)
            case t.Explain():
                return self._explain(statement, catalogue)
            case t.Query():
                return self._pull(statement.select, properties, catalogue)
        raise Refusal(statement.at, "the statement is not executed here")

    # Definitions.

    def _changed(self, text: str, pipeline: str, what: str) -> Result:
        """One command of the metastore."""
        outcome = execute(sql_statement(text, pipeline), self._settings)
        if not outcome.changed:
            return Result(f"{what} exists already, nothing changed")
        queries = outcome.names[1:]
        if not queries:
            return Result(f"{what} is defined")
        start = f"Dagster starts it, or: rollforward start {queries[0].lower()}"
        return Result(f"{what}: query {queries[0]} is deployed; {start}")

    def _drop(self, statement: t.Drop, parsed: Parsed) -> Result:
        refresh(self._settings)
        with self._catalogue() as catalogue:
            # Refused before its query is stopped; whether it goes is decided again in the log's order.
            relation = droppable(statement, catalogue)
        pipeline = relation.query.lower() if relation is not None else ""
        if pipeline:
            self._stop(pipeline)
        outcome = execute(sql_statement(parsed.text, pipeline), self._settings)
        if not outcome.changed or relation is None:
            return Result(f"there is no {statement.kind.lower()} {statement.name.text}")
        if pipeline:
            self._end(pipeline)
        topic = f"topic {relation.source.topic} {'goes with it' if statement.delete_topic else 'stays'}"
        return Result(f"{relation.kind.lower()} {relation.name} is dropped, {topic}")

    def _control(self, statement: t.Control) -> Result:
        refresh(self._settings)
        # ALL is every pipeline as a whole, those of several queries as well.
        wanted = self._registry.pipeline_names() if statement.query is None else [self._whole(statement.query)]
        for pipeline in wanted:
            if statement.action != "TERMINATE":
                desired = RUNNING if statement.action == "RESUME" else STOPPED
                want(pipeline, desired, self._settings, self._registry)
                continue
            self._stop(pipeline)
            execute(sql_statement(f"TERMINATE `{pipeline.upper()}`", pipeline), self._settings)
            self._end(pipeline)
        done = {"TERMINATE": "terminated", "PAUSE": "paused", "RESUME": "resumed"}[statement.action]
        return Result(f"{done}: {', '.join(wanted).upper() or 'there was no query'}")

    def _whole(self, query_id: str) -> str:
        """The pipeline that the query is all of. One of several cannot run, stop or go without the others."""
        pipeline = self._query(query_id).pipeline
        if pipeline.upper() != query_id:
            raise InvalidInput(
                "query is one of a pipeline of several",
                query=query_id,
                pipeline=pipeline,
                hint=f"all of them: `rollforward stop`, `start` or `drop {pipeline}`",
            )
        return pipeline

    def _stop(self, pipeline: str) -> None:
        """No longer wanted, and its driver has ended."""
        want(pipeline, STOPPED, self._settings, self._registry)
        self._end(pipeline)

    def _query_ids(self) -> list[str]:
        with self._catalogue() as catalogue:
            return [query_id for query_id, _, _ in catalogue.queries()]

    def _insert_values(self, statement: t.InsertValues) -> Result:
        refresh(self._settings)
        with self._catalogue() as catalogue:
            relation = insertable(statement, catalogue)
            require_writable(relation.source.topic, catalogue.snapshot)
        key, value, time_ms = record_of(statement, relation)
        producer = TransactionalProducer(self._settings.kafka_config(), f"rollforward-insert-{uuid.uuid4()}")
        try:
            producer.init()
            producer.begin()
            producer.produce(relation.source.topic, key=key, value=value, timestamp_ms=time_ms)
            producer.flush()
            producer.commit()
        finally:
            # Nobody else has its id: what is left open would keep the topic's readers until it times out.
            producer.close(abort_within_s=ABORT_S)
        return Result(f"one record is in topic {relation.source.topic}")

    # Looking.

    def _query(self, query_id: str) -> DeployedQuery:
        """The query of an id. Raises `InvalidInput` with those that exist."""
        for row in self._registry.pipelines():
            for deployed in deployed_queries(row):
                name = row.name if len(row.queries) == 1 else f"{row.name}.{deployed.query.name}"
                if name.upper() == query_id.upper():
                    return deployed
        known = ", ".join(self._query_ids()) or "none is deployed"
        raise InvalidInput("query does not exist", query=query_id, queries=known, hint="SHOW QUERIES lists them")

    def _explain(self, statement: t.Explain, catalogue: SnapshotCatalogue) -> Result:
        from pipelines.console.explain import explain_rows, spark_plan

        if statement.statement is None:
            deployed = self._query(statement.query or "")
            query, pipeline = deployed.query, deployed.pipeline
        else:
            query, pipeline = self._planned(statement.statement, catalogue)
        text = spark_plan(query, self._spark())
        return Result(columns=("property", "value"), rows=[*explain_rows(query, pipeline), ("spark plan", text)])

    def _planned(self, statement: t.Statement, catalogue: SnapshotCatalogue) -> tuple[Plan, str]:
        """The plan of a statement that was not executed, and the pipeline that it would be."""
        tasks = self._settings.tasks
        statement = with_types(statement, catalogue.types())
        match statement:
            case t.CreateAs():
                planned = plan_create(statement, catalogue, topic=statement.name.text, tasks=tasks)
                return planned.query, query_pipeline(statement)
            case t.InsertSelect():
                return plan_insert(statement, catalogue, name="insertquery").query, "insertquery"
            case t.Query(select=select) if select.emit is not None:
                kind = t.TABLE if select.group_by is not None else t.STREAM
                named = t.CreateAs(kind, Name("EXPLAINED", "explained", select.at), None, select)
                return plan_create(named, catalogue, topic="EXPLAINED", tasks=tasks).query, query_pipeline(named)
        raise Refusal(statement.at, "EXPLAIN takes a continuous query", "CREATE … AS, INSERT INTO … SELECT, or its id")

    def _pull(self, select: t.Select, properties: dict[str, str], catalogue: SnapshotCatalogue) -> Result:
        if select.emit is not None:
            raise Refusal(select.emit_at, "push queries are not supported yet", "leave EMIT out to pull from a table")
        relation = require(catalogue, select.source.name, "table")
        deployed = self._filled(relation, select)
        pull = plan_pull(select, relation, deployed.query)
        isolation = Isolation(properties.get("isolation.level", "read_committed"))
        store = StoreReader(deployed, self._settings, self._registry)
        return Result(columns=pull.names, rows=pull.rows(store, isolation))

    def _filled(self, relation: Relation, select: t.Select) -> DeployedQuery:
        if relation.kind != t.TABLE or not relation.query:
            hint = "only a table that CREATE TABLE … AS SELECT fills has a store"
            raise Refusal(select.source.name.at, f"{relation.name} cannot be pulled from", hint)
        deployed = self._query(relation.query)
        if deployed.query.stateless:
            hint = "it is computed from another table row by row; pull from a table with GROUP BY"
            raise Refusal(select.source.name.at, f"{relation.name} has no store", hint)
        return deployed
