"""Deciding what a pipeline needs, from what is desired and what is observed. Nothing is done or read here.

    desired   observed                              due
    running   never started, or stopped             launch_pipeline
    running   died, failed, or silent too long      recover_pipeline
    running   fenced by another driver              nothing: another owner lives, and starting would fight it
    stopped   alive for longer than STOP_GRACE_S    stop_pipeline

An incident is one such finding about one driver process. It gets one run; another one only if that run is over and the
finding still stands. After a run, the next one of the pipeline waits: BACKOFF_FIRST_S, doubled with each run up to
BACKOFF_MAX_S, until a driver has run for STEADY_S. After RUNS_MAX of them the pipeline is given up and left alone,
unless it is Kafka or the storage that does not answer: a person mends the cause and runs recover_pipeline, or stops the
pipeline and starts it, and all is forgotten. So it is when the pipeline was dropped and another one deployed under its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from ops.control import PipelineStatus
from pipelines.registry import RUNNING, DriverRow

BACKOFF_FIRST_S = 5.0
BACKOFF_MAX_S = 300.0
STEADY_S = 60.0
STOP_GRACE_S = 60.0
RUNS_MAX = 10
# So many drivers in a row that failed of one batch, and the batch is called poisoned.
POISONED = 3
# What comes back by itself is waited for without end, at the longest distance.
_OUTSIDE = re.compile("kafka does not answer|object storage|no store server answers|store server is not running")
_FAILED_BATCH = re.compile(r"batch failed query=`([^`]*)` batch=`(\d+)`")


class Action(Enum):
    """What is done about an incident; the value is the job's name."""

    LAUNCH = "launch_pipeline"
    RECOVER = "recover_pipeline"
    STOP = "stop_pipeline"


@dataclass(frozen=True)
class Incident:
    """`key` is the same for as long as it is the same finding about the same process."""

    action: Action
    key: str
    reason: str


@dataclass(frozen=True)
class Memory:
    """What the sensor remembers of one pipeline between ticks; it is part of the sensor's cursor.

    `runs` counts runs since a driver was last steady, `tries` those for `incident`; `run_seen_at` is when the last of
    them was requested or seen in progress; `stopping_since` is when a driver was first seen that should not run;
    `failed_batch` is what the newest driver failed of and `batch_failures` how many in a row did. All of it is of the
    pipeline that was deployed at `deployed_at`; 0.0 where that was not noted.
    """

    incident: str = ""
    tries: int = 0
    runs: int = 0
    run_seen_at: float = 0.0
    stopping_since: float | None = None
    failed_batch: str = ""
    batch_failures: int = 0
    deployed_at: float = 0.0


@dataclass(frozen=True)
class Decision:
    """A run to request, or None; `text` says in words why or why not."""

    incident: Incident | None
    run_key: str
    text: str
    memory: Memory


def find_incident(
    status: PipelineStatus, driver: DriverRow | None, deployed_at: float, *, stopping_s: float
) -> Incident | None:
    """The table above. `stopping_s` is for how long a driver has been seen that is not desired."""
    name = status.pipeline
    process = f"{name}-{deployed_at}" if driver is None else f"{name}-{driver.pid}-{driver.started_at}"
    if status.desired != RUNNING:
        if status.alive and stopping_s >= STOP_GRACE_S:
            return Incident(Action.STOP, f"stop-{process}", f"should be stopped, but runs since {stopping_s:.0f} s")
        return None
    if status.needs_recovery:
        return Incident(Action.RECOVER, f"recover-{process}", status.needs_recovery)
    if driver is None:
        return Incident(Action.LAUNCH, f"launch-{process}", "was never started")
    if driver.state == "stopped" and not status.alive:
        return Incident(Action.LAUNCH, f"launch-{process}", f"driver {driver.pid} was stopped, but should run")
    return None


def decide(
    status: PipelineStatus,
    driver: DriverRow | None,
    deployed_at: float,
    memory: Memory,
    *,
    now: float,
    busy: str = "",
) -> Decision:
    """What to do now. `busy` says what else is at work on the pipeline, if anything: then nothing is started."""
    memory = _observed(status, driver, _of_deployment(memory, deployed_at), now)
    stopping_s = 0.0 if memory.stopping_since is None else now - memory.stopping_since
    incident = find_incident(status, driver, deployed_at, stopping_s=stopping_s)
    if busy:
        return Decision(None, "", busy, replace(memory, run_seen_at=now))
    if incident is None:
        return Decision(None, "", _nothing_due(status, stopping_s), memory)
    if memory.runs >= RUNS_MAX and incident.action is Action.RECOVER and not _OUTSIDE.search(incident.reason):
        return Decision(None, "", _gave_up(incident, memory), memory)
    wait_s = memory.run_seen_at + backoff_s(memory.runs) - now
    if memory.runs and wait_s > 0:
        text = f"{incident.reason}; runs so far: {memory.runs}, the next in {wait_s:.0f} s"
        return Decision(None, "", text, memory)
    tries = memory.tries + 1 if incident.key == memory.incident else 1
    run_key = incident.key if tries == 1 else f"{incident.key}-try-{tries}"
    memory = _failed(memory, driver, again=tries > 1)
    if memory.batch_failures >= POISONED:
        incident = replace(incident, reason=f"{incident.reason}; {_poisoned(memory)}")
    requested = replace(memory, incident=incident.key, tries=tries, runs=memory.runs + 1, run_seen_at=now)
    return Decision(incident, run_key, incident.reason, requested)


def _of_deployment(memory: Memory, deployed_at: float) -> Memory:
    """The memory, or a new one: what another pipeline of the name went through says nothing of this one."""
    known = memory.deployed_at in (0.0, deployed_at)
    return replace(memory if known else Memory(), deployed_at=deployed_at)


def backoff_s(runs: int) -> float:
    """How long to wait after `runs` runs that did not lead to a steady driver."""
    return 0.0 if runs == 0 else min(BACKOFF_FIRST_S * 2.0 ** min(runs - 1, 30), BACKOFF_MAX_S)


def _failed(memory: Memory, driver: DriverRow | None, *, again: bool) -> Memory:
    """The memory with the batch that this driver failed of. One driver counts once, however often a run is tried."""
    found = None if driver is None else _FAILED_BATCH.search(driver.error)
    if again:
        return memory
    if found is None:
        return replace(memory, failed_batch="", batch_failures=0)
    batch = f"{found[1]}/{found[2]}"
    return replace(
        memory, failed_batch=batch, batch_failures=memory.batch_failures + 1 if batch == memory.failed_batch else 1
    )


def _poisoned(memory: Memory) -> str:
    query, _, batch = memory.failed_batch.partition("/")
    return f"batch {batch} of query {query} is poisoned: {memory.batch_failures} drivers in a row failed of it"


def _gave_up(incident: Incident, memory: Memory) -> str:
    poison = f"; {_poisoned(memory)}" if memory.batch_failures >= POISONED else ""
    return (
        f"is given up after {memory.runs} runs without a minute's rest: {incident.reason}{poison}. "
        "Mend the cause (docs/runbooks/GivenUp.md), then run recover_pipeline"
    )


def _observed(status: PipelineStatus, driver: DriverRow | None, memory: Memory, now: float) -> Memory:
    """The memory with what this tick sees."""
    undesired = status.alive and status.desired != RUNNING
    since = (now if memory.stopping_since is None else memory.stopping_since) if undesired else None
    memory = replace(memory, stopping_since=since)
    runs_well = status.alive and status.state == "running" and not status.needs_recovery
    steady = driver is not None and runs_well and now - driver.started_at >= STEADY_S
    at_rest = status.desired != RUNNING and not status.alive
    return replace(memory, runs=0, failed_batch="", batch_failures=0) if steady or at_rest else memory


def _nothing_due(status: PipelineStatus, stopping_s: float) -> str:
    if status.desired != RUNNING:
        return f"is stopping since {stopping_s:.0f} s" if status.alive else "is stopped, as desired"
    if status.state == "fenced":
        return "was fenced: another driver owns it. End that one, then run launch_pipeline"
    if status.state != "running":
        return f"is {status.state}"
    return f"runs, {status.lag} offsets behind"
