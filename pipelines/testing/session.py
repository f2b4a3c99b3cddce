"""The one Spark session of a test run: small, without its web page, with the engine's settings for expressions."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Rows of a case are computed once each: compiling code for them takes longer than that.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def small_session(java_home: Path | None) -> SparkSession:
    """The session, started at the first call, and again if somebody in this process has stopped Spark meanwhile."""
    session = _started(java_home)
    if session.sparkContext._jsc is None:
        _started.cache_clear()
        session = _started(java_home)
    return session


@cache
def _started(java_home: Path | None) -> SparkSession:
    from pipelines.engine.spark import start_session

    settings = Settings(java_home=java_home, spark_master="local[1]", spark_conf=SMALL, spark_driver_memory="512m")
    work = Path(tempfile.mkdtemp(prefix="rollforward-test-"))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    return start_session(settings, "rollforward test", work)
