"""The session of a test run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.java import find_java
from ops.environment import cache_folder, settings_now
from pipelines.testing.session import small_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session() -> SparkSession:
    """The one Spark session, started at the first call. Needs a Java and nothing else."""
    configured = settings_now().java_home
    return small_session(configured or find_java(cache_folder()).home)
