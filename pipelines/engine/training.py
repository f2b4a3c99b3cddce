"""The run that makes a class archive: a driver's session plans and runs a small batch, and the JVM ends in order.

`python -m pipelines.engine.training FILE`; its settings come from the environment. No Kafka is needed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from pipelines.engine.batch import BatchJob
from pipelines.engine.input import GivenPart, Input
from pipelines.engine.job import drained, uncounted
from pipelines.engine.records import GivenRecords
from pipelines.engine.spark import start_session
from pipelines.settings import load_settings
from pipelines.sql import parse_pipeline

_TIMEOUT_S = 180.0
_SQL = """
CREATE STREAM training (name VARCHAR, amount BIGINT, price DOUBLE) WITH (kafka_topic='training', value_format='json');
CREATE TABLE trained AS SELECT name, COUNT(*) AS n, SUM(amount) AS total, AVG(price) AS mean
  FROM training WHERE amount > 0 GROUP BY name HAVING COUNT(*) > 0 EMIT CHANGES;
CREATE TABLE updated AS SELECT name, COUNT(*) AS n, MAX(amount) AS most FROM training GROUP BY name EMIT CHANGES;
"""


def train(session: SparkSession) -> None:
    """Plan and run a small batch of each query the way a driver does: one whose keys Spark updates, one where it does not."""
    values = [b'{"name":"a","amount":1,"price":2.5}'] * 8
    given = GivenRecords(0, pa.nulls(8, pa.binary()), pa.array(values), pa.array(range(8)), pa.array([0] * 8))
    records = Input(session, (GivenPart((given,)),))
    for query in parse_pipeline(_SQL, pipeline="training", default_tasks=2).queries:
        job = BatchJob(query)
        job.frame(records, count=uncounted, read=job.without_states(), write=drained).select("*").collect()


def main() -> None:
    target = Path(sys.argv[1])
    settings = load_settings().model_copy(update={"class_archive": None, "spark_conf": _writes(target)})
    session = start_session(settings, "class archive", target.parent)
    train(session)
    jvm = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    session.stop()
    # The JVM ends when its standard input does, and writes the archive on its way out.
    jvm.stdin.close()
    jvm.wait(_TIMEOUT_S)


def _writes(target: Path) -> dict[str, str]:
    return {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={target}"}


if __name__ == "__main__":
    main()
