"""Which of the three ways a plan's batches run."""

from __future__ import annotations

from pipelines.engine.batch import BatchJob
from pipelines.engine.job import Job
from pipelines.engine.ordered import OrderedJob
from pipelines.engine.projection import ProjectionJob
from pipelines.plan import Query


def job_of(query: Query) -> Job:
    """The job of a plan: by whether it keeps state, and whether it takes its rows one after the other."""
    if query.stateless:
        return ProjectionJob(query)
    return OrderedJob(query) if query.in_record_order else BatchJob(query)
