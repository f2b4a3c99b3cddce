"""The Spark session of a driver. Spark is stateless here: it computes, the store servers keep and commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipelines.engine.early import early
from pipelines.engine.jvm import spark_conf
from pipelines.settings import Settings


def start_session(
    settings: Settings, app: str, work: Path, *, on_jvm: Callable[[Any], None] = lambda _gateway: None
) -> SparkSession:
    """A session in this process. `work` takes Spark's own files; they can be deleted between runs.

    `on_jvm` is given the gateway to the JVM once that answers, before a session is made of it.
    """
    conf = spark_conf(settings, work).setAppName(app)
    SparkContext._ensure_initialized(conf=conf)
    on_jvm(SparkContext._gateway)
    return SparkSession.builder.config(conf=conf).getOrCreate()


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
