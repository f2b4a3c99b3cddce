"""The goals, each a bound on one figure of `docs/benchmarks.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.report import OURS, Row


@dataclass(frozen=True)
class Goal:
    """`field` is the row's `value` or `ratio_ours_to_this`; the bound is inclusive, from below where `at_least`."""

    text: str
    workload: str
    system: str
    metric: str
    field: str
    bound: float
    at_least: bool

    def found(self, rows: Sequence[Row]) -> float | None:
        """The figure; None where it has not been measured."""
        wanted = (self.workload, self.system, self.metric)
        return next((r.get(self.field) for r in rows if wanted == (r["workload"], r["system"], r["metric"])), None)

    def met(self, found: float) -> bool:
        """Whether the figure keeps the bound."""
        return found >= self.bound if self.at_least else found <= self.bound


def faster(text: str, workload: str, system: str, times: float) -> Goal:
    """Ours does so many times the records of another."""
    return Goal(text, workload, system, "records_per_s", "ratio_ours_to_this", times, at_least=True)


def below(text: str, workload: str, metric: str, bound: float) -> Goal:
    """A figure of ours is no larger."""
    return Goal(text, workload, OURS, metric, "value", bound, at_least=False)


RECOVER = "recover-empty-disk-10000000"


def sooner(text: str, place: str, system: str, times: float) -> Goal:
    """An empty disk of ten million keys is back in a part of another's time."""
    return Goal(
        text, f"{RECOVER}-{place}", system, "seconds", "ratio_ours_to_this", round(1 / times, 3), at_least=False
    )


GOALS = (
    faster("records/s against Kafka Streams, 10,000 keys", "key-totals-10000", "kafka-streams", 2),
    faster("records/s against Kafka Streams, 500,000 keys", "key-totals-500000", "kafka-streams", 3),
    faster("records/s against Quix Streams", "key-totals-10000", "quix-streams", 5),
    faster("records/s against Spark's Python state", "key-totals-10000", "spark-python-state", 10),
    faster("records/s against ours without transactions", "key-totals-10000", "rollforward-no-transactions", 0.97),
    below("latency, median (ms)", "latency", "p50_ms", 700),
    below("latency, 99th percentile (ms)", "latency", "p99_ms", 2_000),
    below("batch with nothing to do (ms)", "nothing-to-do", "batch_ms", 50),
    below("idle, CPU of a core (%)", "idle", "cpu_percent_of_a_core", 2),
    below("idle, records written", "idle", "records_written", 0),
    below("killed driver: first new result after the restart (s)", "restart", "driver_first_s", 10),
    below("of it recovery (s)", "restart", "driver_recovery_s", 1),
    below("killed store server: first new result (s)", "restart", "server_first_s", 2),
    sooner("empty disk from a folder against Kafka Streams (share of its time)", "local", "kafka-streams", 10),
    sooner("empty disk from a folder against our full replay", "local", "full-replay", 3),
    sooner("empty disk from S3 against Kafka Streams", "s3", "kafka-streams", 4),
    sooner("empty disk from S3 against our full replay", "s3", "full-replay", 3),
    below("second snapshot after 1 % changed: uploaded (%)", f"{RECOVER}-local", "uploaded_percent", 10),
    below("throughput lost while a snapshot is taken (%)", f"{RECOVER}-local", "loss_percent", 5),
    # A hundredth of what the processes hold would be 15 MB: less than that in an hour is flat.
    below("memory's growth in a soak (MB an hour)", "soak", "growth_mb_per_hour", 15),
)
