"""An archive of the classes that a driver's JVM loads: with it a start takes about half the CPU.

Owns one file per Java and Spark. It is made once on a machine by a short, orderly run of what every driver
does (`train`), in a process of its own, since the JVM writes the archive when it ends. The JVM itself checks that an
archive fits and starts without one that does not, so a wrong or damaged one costs time and nothing else.

`python -m pipelines.engine.class_archive FILE` is the run; its settings come from the environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyspark
import structlog
from pyspark.sql import SparkSession

from pipelines.engine.batch import BatchJob
from pipelines.engine.input import GivenPart, Input
from pipelines.engine.job import drained, uncounted
from pipelines.engine.records import GivenRecords
from pipelines.engine.spark import start_session
from pipelines.settings import Settings, load_settings
from pipelines.sql import parse_pipeline

log = structlog.get_logger()
_TIMEOUT_S = 180.0
_SQL = """
CREATE STREAM training (name VARCHAR, amount BIGINT, price DOUBLE) WITH (kafka_topic='training', value_format='json');
CREATE TABLE trained AS SELECT name, COUNT(*) AS n, SUM(amount) AS total, AVG(price) AS mean
  FROM training WHERE amount > 0 GROUP BY name HAVING COUNT(*) > 0 EMIT CHANGES;
"""


def archive_path(settings: Settings, folder: Path) -> Path:
    """Where the archive for these settings lies in `folder`, made or not."""
    release = (settings.java_home / "release") if settings.java_home is not None else None
    java = release.read_text() if release is not None and release.exists() else str(settings.java_home)
    identity = json.dumps([java, pyspark.__version__, pyspark.__file__])
    return folder / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def make_archive(settings: Settings, target: Path) -> None:
    """Make the archive. Where this Java cannot, `target` is left empty, which a JVM passes over. Kill it at any moment."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix=".training-", dir=target.parent) as work:
        made = Path(work) / target.name
        command = [sys.executable, "-m", "pipelines.engine.class_archive", str(made)]
        environment = {
            **os.environ,
            "ROLLFORWARD_JAVA_HOME": "" if settings.java_home is None else str(settings.java_home),
        }
        try:
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            output = (getattr(error, "stderr", None) or b"")[-1000:].decode(errors="replace")
            hint = f"to try again delete {target}"
            log.warning("drivers start without class archive", error=str(error), output=output, hint=hint)
            made.touch()
        made.replace(target)


def train(session: SparkSession) -> None:
    """Plan and run a small batch the way a driver does. No Kafka is needed."""
    query = parse_pipeline(_SQL, pipeline="training", default_tasks=2).queries[0]
    job = BatchJob(query)
    values = [b'{"name":"a","amount":1,"price":2.5}'] * 8
    given = GivenRecords(0, pa.nulls(8, pa.binary()), pa.array(values), pa.array(range(8)), pa.array([0] * 8))
    records = Input(session, (GivenPart((given,)),))
    job.frame(records, count=uncounted, read=job.without_states(), write=drained).collect()


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
