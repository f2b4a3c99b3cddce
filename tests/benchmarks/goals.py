"""The goals, each a bound on one figure of `docs/benchmarks.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.report import OURS, Row


@dataclass(frozen=True)
class Goal:
    """`field` is the row's `value` or `ratio_ours_to_this`; the bound is inclusive, from below where `at_least`.

    `needs` is a metric of the same workload and system and its least value, without which the figure says nothing.
    """

    text: str
    workload: str
    system: str
    metric: str
    field: str
    bound: float
    at_least: bool
    needs: tuple[str, float] | None = None

    def found(self, rows: Sequence[Row]) -> float | None:
        """The figure; None where it has not been measured, or not as it has to be."""
        if self.needs is not None:
            metric, least = self.needs
            there = self._row(rows, metric)
            if there is None or there["value"] < least:
                return None
        row = self._row(rows, self.metric)
        return None if row is None else row.get(self.field)

    def rounds(self, rows: Sequence[Row]) -> int:
        """How many rounds the figure is the median of."""
        row = self._row(rows, self.metric)
        return 0 if row is None else len(row.get("rounds", ()))

    def _row(self, rows: Sequence[Row], metric: str) -> Row | None:
        wanted = (self.workload, self.system, metric)
        return next((row for row in rows if wanted == (row["workload"], row["system"], row["metric"])), None)

    def met(self, found: float) -> bool:
        """Whether the figure keeps the bound."""
        return found >= self.bound if self.at_least else found <= self.bound


def faster(text: str, workload: str, system: str, times: float) -> Goal:
    """Ours does so many times the records of another."""
    return Goal(text, workload, system, "records_per_s", "ratio_ours_to_this", times, at_least=True)


def below(text: str, workload: str, metric: str, bound: float, needs: tuple[str, float] | None = None) -> Goal:
    """A figure of ours is no larger."""
    return Goal(text, workload, OURS, metric, "value", bound, at_least=False, needs=needs)


def sooner(
    text: str, workload: str, system: str, metric: str, times: float, needs: tuple[str, float] | None = None
) -> Goal:
    """Ours takes a part of another's time."""
    bound = round(1 / times, 3)
    return Goal(text, workload, system, metric, "ratio_ours_to_this", bound, at_least=False, needs=needs)


def recovered(keys: int) -> tuple[Goal, ...]:
    """An empty disk of so many keys is back."""
    size, folder, s3 = f"{keys // 1_000_000} M keys", *(f"recover-empty-disk-{keys}-{at}" for at in ("local", "s3"))
    return (
        sooner(f"empty disk, {size}, folder: share of Kafka Streams' time", folder, "kafka-streams", "seconds", 10),
        sooner(f"empty disk, {size}, folder: share of our full replay's", folder, "full-replay", "seconds", 3),
        sooner(f"empty disk, {size}, S3: share of Kafka Streams' time", s3, "kafka-streams", "seconds", 4),
        sooner(f"empty disk, {size}, S3: share of our full replay's", s3, "full-replay", "seconds", 3),
        below(f"second snapshot, {size}, after 1 % changed: uploaded (%)", folder, "uploaded_percent", 10),
        below(f"throughput lost while a snapshot is taken, {size} (%)", folder, "loss_percent", 5),
    )


_LARGE = ("state_keys", 10_000_000)
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
    below("killed driver: first new result after the restart (s)", "restart", "driver_first_s", 10, _LARGE),
    sooner("killed driver: share of Kafka Streams' time", "restart", "kafka-streams", "driver_first_s", 1, _LARGE),
    below("of it recovery (s)", "restart", "driver_recovery_s", 1, _LARGE),
    below("killed store server: first new result (s)", "restart", "server_first_s", 2, _LARGE),
    *recovered(1_000_000),
    *recovered(10_000_000),
    # A hundredth of what the processes hold would be 15 MB: less than that in an hour is flat.
    below("memory's growth in a soak (MB an hour)", "soak", "growth_mb_per_hour", 15, ("minutes", 30)),
)
