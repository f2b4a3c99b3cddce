"""How far a system is, measured in the same way for all: the input that it has committed.

Whoever commits in Kafka (ours, Kafka Streams, Quix) shows it in its consumer groups; Spark shows it in its checkpoint.
Steady state is what lies between two commits: the first at or behind the warm-up and the last one of the input. Both
ends are commits, so no work that is not committed counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import confluent_kafka as ck

from tests.benchmarks.topics import PARTITIONS

POLL_S = 0.05
# A new broker has no coordinator yet: nothing is committed.
NOT_READY = {
    ck.KafkaError.NOT_COORDINATOR,
    ck.KafkaError.COORDINATOR_NOT_AVAILABLE,
    ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


class Groups:
    """The committed offsets of topics in consumer groups; the slowest pair of group and topic tells how far."""

    def __init__(self, bootstrap: str, pairs: list[tuple[str, str]]) -> None:
        # A consumer that never subscribes only asks: it is no member of the group.
        self._readers = [
            (
                ck.Consumer({"bootstrap.servers": bootstrap, "group.id": group}),
                [ck.TopicPartition(topic, number) for number in range(PARTITIONS)],
            )
            for group, topic in pairs
        ]

    def committed(self) -> int:
        """Offsets that every group has committed of its topic, added up over the partitions; 0 before the first."""
        return min(self._committed(*reader) for reader in self._readers)

    def _committed(self, reader: ck.Consumer, partitions: list[ck.TopicPartition]) -> int:
        try:
            found = reader.committed(partitions, timeout=20)
        except ck.KafkaException as error:
            if error.args[0].code() not in NOT_READY:
                raise
            return 0
        return sum(max(0, partition.offset) for partition in found)

    def close(self) -> None:
        """Close the connections."""
        for reader, _ in self._readers:
            reader.close()


@dataclass(frozen=True)
class Window:
    """Steady state of one run: wall time, commits, and CPU seconds by kind of process."""

    records: int
    seconds: float
    commits: int
    cpu: dict[str, float]


class Meter(Protocol):
    """CPU seconds since it was made, by kind of process."""

    def by_kind(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class Watched:
    """One run from the start of its process. `steady` is None where the warm-up's commit was the input's last."""

    first_commit_s: float
    whole_s: float
    steady: Window | None


def watch(
    committed: Callable[[], int],
    meter: Callable[[], Meter],
    alive: Callable[[], None],
    *,
    warm_up: int,
    total: int,
    timeout_s: float,
) -> Watched:
    """Waits until `total` records are committed. `meter` begins to count CPU, `alive` raises if the system has died.

    Raises TimeoutError.
    """
    began = time.monotonic()
    seen: list[tuple[float, int]] = []
    warm: int | None = None
    cpu = meter()
    while not seen or seen[-1][1] < total:
        now, at = time.monotonic(), committed()
        if now - began > timeout_s:
            raise TimeoutError(f"{seen[-1][1] if seen else 0} of {total} records in {timeout_s} s")
        if at > (seen[-1][1] if seen else 0):
            seen.append((now, at))
            if at >= warm_up and warm is None:
                warm, cpu = len(seen) - 1, meter()
        else:
            alive()
            time.sleep(POLL_S)
    return Watched(seen[0][0] - began, seen[-1][0] - began, _steady(seen[warm or 0 :], cpu.by_kind()))


def _steady(seen: list[tuple[float, int]], cpu: dict[str, float]) -> Window | None:
    (began, start), (ended, end) = seen[0], seen[-1]
    return Window(end - start, ended - began, len(seen) - 1, cpu) if len(seen) > 1 else None
