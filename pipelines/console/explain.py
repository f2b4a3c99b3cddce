"""EXPLAIN: what a query reads, keeps and writes, and Spark's plan of one batch."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from pipelines import names
from pipelines.engine.input import Input
from pipelines.engine.job import drained, uncounted
from pipelines.engine.jobs import job_of
from pipelines.plan import Query


def explain_rows(query: Query, pipeline: str) -> list[tuple[str, str]]:
    """Facts of the plan: name and value."""
    tasks = f"{query.tasks} ({query.name}-0 …)" if query.tasks else "one for each source partition"
    rows = [
        ("query", query.name),
        ("reads", f"topic {query.source.topic} as {query.source.name}"),
        ("writes", f"topic {query.output_topic}, {query.output_partitions or 'as many as the source has'} partitions"),
        ("key", ", ".join(f"{key.name} {key.type}" for key in query.group_by) or "none"),
        ("where", query.where or "every record"),
        ("results", f"one for each {'record' if query.emission == 'every-record' else 'changed key and batch'}"),
        ("tasks", tasks),
        ("dead letters", names.dead_letter_topic(pipeline)),
        ("batches", names.batches_topic(pipeline, query.name)),
    ]
    if not query.stateless:
        kept = ", ".join(f"{a.name} = {a.function}({a.argument or ''})" for a in query.aggregates)
        rows += [("store", query.store), ("changelog", names.changelog_topic(pipeline, query.store)), ("state", kept)]
    if query.window is not None:
        rows.append(("window", f"{query.window.kind} {query.window.size_ms} ms, grace {query.window.grace_ms} ms"))
    return rows


def spark_plan(query: Query, session: SparkSession) -> str:
    """The physical plan of a batch, as Spark formats it. Computes nothing."""
    job = job_of(query)
    return _explained(job.frame(Input(session, ()), count=uncounted, read=job.without_states(), write=drained))


def _explained(frame: DataFrame) -> str:
    context = frame.sparkSession.sparkContext
    assert context._jvm is not None
    return str(context._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted")).strip()
