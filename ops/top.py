"""What `rollforward top` shows: every pipeline with its queries and tasks, as the registry and the drivers' figures say.

A driver that does not answer its scrape is shown by what the registry has. Nothing is asked of Kafka.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ops import control
from pipelines.registry import BatchRow, Registry

SCRAPE_S = 2.0
# Rates are over the batches of the last so many seconds.
RATE_S = 30.0
Samples = Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]


@dataclass(frozen=True)
class TaskLine:
    """One task; `recovery` is the share that is done of an opening under way, else None."""

    task: str
    open: bool
    batch: int
    keys: int
    bytes: int
    recovery: float | None
    snapshot_age_s: float | None


@dataclass(frozen=True)
class QueryLine:
    """One query. Rates are per second over the last half minute; `lag` in records."""

    query: str
    batch: int
    records_per_s: float
    batch_seconds: float
    lag: int
    age_s: float
    tasks: list[TaskLine] = field(default_factory=list)


@dataclass(frozen=True)
class PipelineLine:
    """One pipeline; `trouble` says why a recovery is due, or that the figures are missing."""

    pipeline: str
    desired: str
    state: str
    pid: int | None
    memory_bytes: int
    servers: int
    trouble: str
    queries: list[QueryLine]


def look(registry: Registry, only: Sequence[str] = ()) -> list[PipelineLine]:
    """Every pipeline, or those named, by name. Raises `InvalidInput` for a name that is not deployed."""
    return [_pipeline(registry, name) for name in only or registry.pipeline_names()]


def _pipeline(registry: Registry, name: str) -> PipelineLine:
    status = control.status(registry, name)
    samples, trouble = _scraped(status.metrics_url)
    return PipelineLine(
        pipeline=name,
        desired=status.desired,
        state=status.state,
        pid=status.pid,
        memory_bytes=int(_one(samples, "rollforward_driver_memory_bytes")),
        servers=int(sum(samples.get("rollforward_store_server_up", {}).values())),
        trouble=status.needs_recovery or (trouble if status.alive else ""),
        queries=[_query(registry, name, row, samples) for row in registry.newest_batches(name)],
    )


def _query(registry: Registry, pipeline: str, newest: BatchRow, samples: Samples) -> QueryLine:
    now = time.time()
    recent = [b for b in registry.last_batches(pipeline, newest.query) if b.finished_at >= now - RATE_S]
    lags = _of(samples, "rollforward_source_lag_records", query=newest.query)
    return QueryLine(
        query=newest.query,
        batch=newest.batch,
        records_per_s=round(sum(batch.records for batch in recent) / RATE_S, 1),
        batch_seconds=round(newest.seconds, 3),
        lag=int(sum(lags.values())) if lags else newest.lag,
        age_s=round(now - newest.finished_at, 1),
        tasks=_tasks(samples, newest.query),
    )


def _tasks(samples: Samples, query: str) -> list[TaskLine]:
    found = _of(samples, "rollforward_task_running", query=query)
    done = _of(samples, "rollforward_recovery_done_ratio", query=query)
    names = sorted({dict(labels)["task"] for labels in (*found, *done)}, key=lambda name: (len(name), name))

    def figure(metric: str, task: str) -> float | None:
        values = _of(samples, f"rollforward_{metric}", query=query, task=task)
        return next(iter(values.values()), None)

    lines = []
    for name in names:
        is_open = figure("task_running", name) == 1.0
        lines.append(
            TaskLine(
                task=name,
                open=is_open,
                batch=int(figure("task_committed_batch", name) or 0),
                keys=int(figure("store_keys", name) or 0),
                bytes=int(figure("store_bytes", name) or 0),
                recovery=None if is_open else figure("recovery_done_ratio", name),
                snapshot_age_s=figure("snapshot_age_seconds", name),
            )
        )
    return lines


def _scraped(url: str | None) -> tuple[Samples, str]:
    """A driver's figures by name and labels, and why there are none."""
    if url is None:
        return {}, "its figures are turned off"
    try:
        with urllib.request.urlopen(url, timeout=SCRAPE_S) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    except (OSError, ValueError) as error:
        return {}, f"its figures cannot be had: {error}"
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in families:
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return samples, ""


def _of(samples: Samples, name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
    return {at: value for at, value in samples.get(name, {}).items() if labels.items() <= dict(at).items()}


def _one(samples: Samples, name: str) -> float:
    return next(iter(samples.get(name, {}).values()), 0.0)


def to_json(lines: Sequence[PipelineLine]) -> list[dict[str, Any]]:
    """Plain values."""
    return [asdict(line) for line in lines]
