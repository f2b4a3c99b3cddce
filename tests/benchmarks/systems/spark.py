"""Spark's own state in RocksDB, with its Kafka sink: at-least-once, since the sink has no transactions."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from infra.jars import resolve
from infra.java import find_java
from tests.benchmarks.systems.base import NotPossible, System

PROGRAM = Path(__file__).parents[1] / "peers" / "spark_app.py"


class Spark(System):
    """Aggregations inside the JVM, on the same Spark as ours."""

    name = "spark"
    guarantee = "at-least-once"
    most = 3_000_000
    kind: ClassVar[str] = "aggregation"
    # Of the records that a batch may hold: its own takes all it may, so that a second or two of work are one batch.
    batch_share: ClassVar[float] = 0.125

    @classmethod
    def with_python_state(cls) -> type[Spark]:
        """State in Python: `transformWithState`, where every access is a message to the JVM."""
        fields = {"name": "spark-python-state", "kind": "python", "most": 120_000, "batch_share": 0.01}
        return type("SparkPythonState", (cls,), fields)

    @classmethod
    def version(cls) -> str:
        return version("pyspark")

    def prepare(self) -> None:
        if self.kind == "python" and self.workload.peer != "key-totals":
            raise NotPossible("its program has the key-totals only")
        # Spark's Kafka connector: nothing of ours needs it.
        jars = resolve("connector", find_java(self.broker.cache), cache=self.broker.cache)
        self._connector = os.pathsep.join(map(str, jars))
        self.create_outputs()

    def start(self) -> None:
        environment = {
            "CONNECTOR_JARS": self._connector,
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_HOME": str(self.broker.found.java_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        batch = max(1, int(self.broker.batch * self.batch_share))
        where = [self.broker.bootstrap, self.run, self.topic, str(self.folder), str(batch)]
        self.spawn([sys.executable, str(PROGRAM), self.workload.peer, *where, self.kind], environment)

    def committed(self) -> int:
        return min(self._committed(self.folder / "checkpoint" / table) for table in self.workload.tables)

    def _committed(self, checkpoint: Path) -> int:
        done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdigit()]
        if not done:
            return 0
        offsets = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()[-1]
        return sum(json.loads(offsets)[self.topic].values())
