"""The assets: source topic → result topic → store, and dead letters, one group for each pipeline.

All are external assets: Dagster shows and observes them, and nothing in Dagster makes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from ops.dagster.deployed import Broken, Deployed
from ops.dagster.keys import PipelineKeys, key_part, pipeline_keys, result_keys, source_keys
from pipelines import names
from pipelines.plan import Aggregate, Query, Source, plan_hash

SHARED = "shared_topics"
_QUOTED = re.compile(r"`([^`]*)`")


def pipeline_assets(pipelines: Sequence[Deployed], broken: Sequence[Broken] = ()) -> list[dg.AssetSpec]:
    """Every asset of the given pipelines; a broken one is a single asset that tells its error."""
    results = result_keys({pipeline.name: pipeline.queries for pipeline in pipelines})
    sources = source_keys((topic for pipeline in pipelines for _, topic in pipeline.sources), results)
    reads = _reads(pipelines, sources)
    specs = [_source_asset(topic, sources[topic], pipelines) for topic in sorted(sources) if topic not in results]
    for pipeline in pipelines:
        keys = pipeline_keys(pipeline.name, [query.name for query in pipeline.queries])
        for query in pipeline.queries:
            specs.append(_table_asset(pipeline, query, keys, sources, reads))
            specs.append(_store_asset(pipeline, query, keys))
        specs.append(_dead_letters_asset(pipeline, keys, sources))
    return specs + [_broken_asset(pipeline) for pipeline in broken]


def _reads(pipelines: Sequence[Deployed], sources: Mapping[str, dg.AssetKey]) -> dict[dg.AssetKey, dg.AssetKey]:
    """What each table depends on.

    INSERT INTO lets queries read each other in a loop, and Dagster sorts assets by what they depend on: a table whose
    source comes from the table itself is left out.
    """
    reads: dict[dg.AssetKey, dg.AssetKey] = {}
    for pipeline in pipelines:
        tables = pipeline_keys(pipeline.name, [query.name for query in pipeline.queries]).tables
        for query in pipeline.queries:
            table, source = tables[query.name], sources.get(query.source.topic)
            origin = source
            while origin is not None and origin != table:
                origin = reads.get(origin)
            if source is not None and origin is None:
                reads[table] = source
    return reads


def _source_asset(topic: str, key: dg.AssetKey, pipelines: Sequence[Deployed]) -> dg.AssetSpec:
    readers = [pipeline for pipeline in pipelines if topic in {t for _, t in pipeline.sources}]
    streams = [f"`{name}` of {p.name}" for p in readers for name, t in p.sources if t == topic]
    known = [query.source for p in readers for query in p.queries if query.source.topic == topic]
    metadata: dict[str, Any] = {"topic": topic, "read by": ", ".join(p.name for p in readers)}
    if known:
        metadata["value format"] = known[0].value_format
        metadata["dagster/column_schema"] = _source_schema(known[0])
    return dg.AssetSpec(
        key,
        description=f"Kafka topic `{topic}`, read as stream {', '.join(streams)}.",
        group_name=readers[0].name if len(readers) == 1 else SHARED,
        kinds={"kafka"},
        metadata=metadata,
    )


def _table_asset(
    pipeline: Deployed,
    query: Query,
    keys: PipelineKeys,
    sources: Mapping[str, dg.AssetKey],
    reads: Mapping[dg.AssetKey, dg.AssetKey],
) -> dg.AssetSpec:
    group = ", ".join(f"`{key.name}`" for key in query.group_by)
    table, source = keys.tables[query.name], sources.get(query.source.topic)
    loop = (
        f"\n\n`{query.source.topic}` is computed from this table in turn: Dagster has no loops, so that it depends on "
        f"{source.to_user_string()} is not drawn."
        if source is not None and table not in reads
        else ""
    )
    return dg.AssetSpec(
        table,
        deps=[reads[table]] if table in reads else [],
        description=(
            f"Table `{query.name}`: one row for each {group}, kept up to date from topic `{query.source.topic}`.\n\n"
            f"Every batch writes the rows that it changed to Kafka topic `{query.output_topic}`, exactly once: read it "
            f"with `isolation.level=read_committed`.{loop}"
        ),
        group_name=pipeline.name,
        kinds={"kafka", "sql"},
        code_version=plan_hash(query)[:12],
        metadata={
            "SQL": dg.MetadataValue.md(f"```sql\n{query.sql}\n```"),
            "pipeline's file": dg.MetadataValue.md(f"```sql\n{pipeline.sql}\n```"),
            "source topic": query.source.topic,
            "result topic": query.output_topic,
            "result partitions": query.output_partitions,
            "key format": query.key_format,
            "tasks": query.tasks,
            "deployed at": dg.MetadataValue.timestamp(pipeline.deployed_at),
            "dagster/column_schema": _table_schema(query),
        },
    )


def _store_asset(pipeline: Deployed, query: Query, keys: PipelineKeys) -> dg.AssetSpec:
    changelog = names.changelog_topic(pipeline.name, query.store)
    return dg.AssetSpec(
        keys.stores[query.name],
        deps=[keys.tables[query.name]],
        description=(
            f"State of table `{query.name}`: a transactional store in {query.tasks} tasks, on local disk.\n\n"
            f"Its truth is the changelog topic `{changelog}`: a store that is lost or behind is recovered from it, and "
            "how that went is observed here."
        ),
        group_name=pipeline.name,
        kinds={"rocksdb"},
        code_version=plan_hash(query)[:12],
        metadata={
            "store": query.store,
            "changelog topic": changelog,
            "batches topic": names.batches_topic(pipeline.name, query.name),
            "tasks": query.tasks,
            "dagster/column_schema": _store_schema(query),
        },
    )


def _dead_letters_asset(pipeline: Deployed, keys: PipelineKeys, sources: Mapping[str, dg.AssetKey]) -> dg.AssetSpec:
    topic = names.dead_letter_topic(pipeline.name)
    return dg.AssetSpec(
        keys.dead_letters,
        deps=sorted({sources[source] for _, source in pipeline.sources}),
        description=f"Records that pipeline {pipeline.name} could not use, each with the reason, in Kafka topic `{topic}`.",
        group_name=pipeline.name,
        kinds={"kafka"},
        metadata={"topic": topic},
    )


def _broken_asset(pipeline: Broken) -> dg.AssetSpec:
    part = key_part(pipeline.name)
    return dg.AssetSpec(
        dg.AssetKey([part, "broken_definition"]),
        description=(
            f"**The definition of pipeline `{pipeline.name}` in the metastore cannot be read**, so neither its assets "
            f"nor its driver are looked after.\n\n`{pipeline.error}`\n\nDeploy the pipeline again, or restore the "
            "metastore. Records, results and state in Kafka are not touched by this."
        ),
        group_name=part,
        metadata={"error": pipeline.error},
    )


def unreachable_metastore(error: str) -> dg.AssetSpec:
    """What is shown in place of everything when there is no reading the metastore."""
    return dg.AssetSpec(
        dg.AssetKey(["metastore_unreachable"]),
        description=(
            "**The metastore cannot be read**, so no pipeline is shown. Drivers go on without it until they end.\n\n"
            f"`{error}`\n\nCorrect `metastore_url`, or bring the database back, then reload the definitions."
        ),
        metadata={"error": error},
    )


def _source_schema(source: Source) -> dg.TableSchema:
    return dg.TableSchema(
        [
            dg.TableColumn(column.name, column.type, description="the record's key" if column.key else None)
            for column in source.columns
        ]
    )


def _table_schema(query: Query) -> dg.TableSchema:
    known = {f"`{aggregate.name}`": aggregate for aggregate in query.aggregates}
    keys = [dg.TableColumn(key.name, key.type, description="key") for key in query.group_by]
    values = []
    for output in query.outputs:
        aggregate = known.get(output.expression)
        kind = _result_type(aggregate) if aggregate else "computed"
        text = _call(aggregate) if aggregate else _readable(output.expression, known)
        values.append(dg.TableColumn(output.name, kind, description=text))
    return dg.TableSchema(keys + values)


def _readable(expression: str, known: Mapping[str, Aggregate]) -> str:
    """An expression with the calls in the place of the plan's names for them."""
    return _QUOTED.sub(lambda name: _call(known[name[0]]) if name[0] in known else name[1], expression)


def _store_schema(query: Query) -> dg.TableSchema:
    keys = [dg.TableColumn(key.name, key.type, description="key") for key in query.group_by]
    return dg.TableSchema(keys + [dg.TableColumn(a.name, a.type, description=_call(a)) for a in query.aggregates])


def _result_type(aggregate: Aggregate) -> str:
    if aggregate.function != "avg":
        return aggregate.type
    return "computed" if aggregate.type.startswith("decimal") else "double"


def _call(aggregate: Aggregate) -> str:
    if aggregate.argument is None:
        return "COUNT(*)"
    return f"{aggregate.function.upper()}({aggregate.argument.replace('`', '')})"
