"""The Spark session of a driver. Spark is stateless here: it computes, the store servers keep and commit."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from pipelines.engine.early import early
from pipelines.engine.jvm import spark_conf
from pipelines.settings import Settings


def start_session(settings: Settings, app: str, work: Path) -> SparkSession:
    """A session in this process. `work` takes Spark's own files; they can be deleted between runs."""
    return SparkSession.builder.config(conf=spark_conf(settings, work).setAppName(app)).getOrCreate()


def start_workers(session: SparkSession) -> threading.Thread:
    """Start Spark's Python daemon and a worker beside the caller: importing takes seconds, and so does planning a batch.

    Gives the thread.
    """

    def start() -> None:
        context = session.sparkContext
        context.setJobDescription("starts the Python workers")
        context.parallelize([0], 1).foreachPartition(_do_nothing)

    return early("workers", start)


def _do_nothing(rows: Iterable[int]) -> None:
    """What the first task of a Python worker is."""
