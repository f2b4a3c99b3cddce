"""The session of a test run on this machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from infra.java import find_java
from ops.environment import cache_folder, settings_now
from pipelines.testing.session import small_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session() -> SparkSession:
    """The one Spark session, started at the first call. Needs a Java and nothing else."""
    return small_session(_java_home())


@cache
def _java_home() -> Path:
    """Looked for once: that starts a Java each time, which takes longer than a case."""
    return settings_now().java_home or find_java(cache_folder()).home
