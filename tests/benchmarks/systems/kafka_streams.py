"""Kafka Streams, `exactly_once_v2`: one Java program for all workloads, built by the benchmark."""

from __future__ import annotations

from tests.benchmarks.systems.base import System
from tests.java import programs

HEAP = "2g"
# The names that the program gives to its groupings of flights.
GROUPINGS = ("carriers", "routes")


class KafkaStreams(System):
    """Two threads, static membership; twice the heap of ours: with one gigabyte it can run out of it at ten million keys."""

    name = "kafka-streams"

    @classmethod
    def version(cls) -> str:
        return programs.kafka_version()

    def prepare(self) -> None:
        self._command = programs.command("KafkaStreamsPeer", f"-Xmx{HEAP}", cache=self.broker.cache)
        self.create_outputs()

    def start(self) -> None:
        arguments = [self.workload.peer, self.broker.bootstrap, self.run, self.topic, str(self.folder / "state")]
        self.spawn([*self._command, *arguments])

    def inner_topics(self) -> list[str]:
        return [f"{self.run}-{name}-repartition" for name in GROUPINGS] if self.workload.peer == "flights" else []
