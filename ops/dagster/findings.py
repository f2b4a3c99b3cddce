"""What is found of a pipeline before it is recovered, and its recovery plans, as text for people."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from ops import control
from pipelines.registry import BatchRow, DriverRow, Registry
from pipelines.settings import Settings

LOG_LINES = 20
_LOG_BYTES_MAX = 16 * 1024
_COLUMNS = ("task", "way", "reason", "batch", "offsets", "records", "seconds")


@dataclass(frozen=True)
class Findings:
    """The newest driver, what still lives of it, where its queries stood, and the end of its log.

    `driver` is None also where the newest is a dead one of an earlier pipeline of the name; what that left is in `remains`.
    """

    status: control.PipelineStatus
    driver: DriverRow | None
    remains: tuple[psutil.Process, ...]
    batches: tuple[BatchRow, ...]
    log: str

    def markdown(self) -> str:
        """As a page of the run."""
        return "\n".join([f"- {line}" for line in self._facts()] + ["", "```text", self.log or "(no log)", "```"])

    def text(self) -> str:
        """As a log message."""
        return "\n".join(["found:", *(f"  {line}" for line in self._facts()), "end of the driver's log:", self.log])

    def _facts(self) -> list[str]:
        lines = [f"desired {self.status.desired}, observed {self.status.state}"]
        left = ", ".join(f"pid {process.pid}" for process in self.remains)
        if self.driver is None:
            earlier = [f"still there of an earlier driver: {left}"] if left else []
            return [*lines, "no driver was ever started", *earlier]
        lines.append(f"driver pid {self.driver.pid} on {self.driver.host}, {'alive' if self.status.alive else 'dead'}")
        lines.append(f"last heartbeat {_moment(self.driver.heartbeat_at)}, {self.status.heartbeat_age_s} s ago")
        if self.driver.error:
            lines.append(f"its error: {self.driver.error}")
        lines += [
            f"query {batch.query}: batch {batch.batch} was its last, finished {_moment(batch.finished_at)}"
            for batch in self.batches
        ] or ["no batch was finished yet"]
        if left:
            lines.append(f"still there of it: {left}")
        return lines


def look(settings: Settings, registry: Registry, name: str) -> Findings:
    """What there is to know now. Changes nothing. Raises `InvalidInput` for an unknown pipeline."""
    row, status, driver = registry.pipeline(name), control.status(registry, name), registry.driver(name)
    return Findings(
        status=status,
        driver=control.counting(driver, row.deployed_at),
        remains=tuple(_remains(driver)) if driver is not None and not status.alive else (),
        batches=tuple(registry.newest_batches(name)),
        log=_tail(control.driver_log(settings, name)),
    )


def end_remains(findings: Findings) -> list[int]:
    """Kill what is left of a dead driver; gives the pids. Kafka and the stores hold whatever they were doing."""
    ended = []
    for process in findings.remains:
        try:
            process.kill()
            ended.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(findings.remains, timeout=10)
    return ended


def _remains(driver: DriverRow) -> Iterable[psutil.Process]:
    """Store servers that the driver left: a recorded pid that listens on the recorded socket is one for certain."""
    for server in driver.servers:
        # Those of other machines go on without a driver.
        if server.get("pid") is None:
            continue
        try:
            process = psutil.Process(int(server["pid"]))
            if any(connection.laddr == server["socket"] for connection in process.net_connections(kind="unix")):
                yield process
        except (psutil.Error, KeyError, ValueError):
            continue


def plans_markdown(plans: Sequence[Mapping[str, Any]]) -> str:
    """Recovery plans as a table, tasks in order; what a plan does not know stays empty."""
    rows = sorted(plans, key=lambda plan: _task_order(str(plan.get("task", ""))))
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + " --- |" * len(_COLUMNS)]
    for plan in rows:
        cells = (str(plan.get(column, "")).replace("|", "\\|").replace("\n", " ") for column in _COLUMNS)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plan_text(plan: Mapping[str, Any]) -> str:
    """One plan as a line."""
    took = f", {plan['records']} records in {plan['seconds']} s" if "seconds" in plan else ""
    return f"{plan.get('task')}: {plan.get('way')}, as {plan.get('reason')}{took}"


def summary(
    findings: Findings, reason: str, plans: Sequence[Mapping[str, Any]], *, seconds: float, output: float | None
) -> str:
    """The incident as a short page for the morning after."""
    ways = Counter(str(plan.get("way", "")) for plan in plans)
    slowest = max((float(plan.get("seconds", 0.0)) for plan in plans), default=0.0)
    committed = "no batch was due yet" if output is None else f"first new committed batch after {output} s"
    lines = [
        f"- what happened: {reason or findings.status.needs_recovery or 'a person asked'}",
        f"- what was found: {findings.status.state}, last heartbeat {findings.status.heartbeat_age_s} s before",
        f"- what was done: {_ended(len(findings.remains))}a new driver started; "
        + (", ".join(_recovered(way, count) for way, count in sorted(ways.items())) or "no task had to be opened"),
        f"- how long it took: running after {seconds} s, the slowest task {slowest} s; {committed}",
        f"- what it cost: {sum(int(plan.get('records', 0)) for plan in plans)} changelog records replayed; no record "
        "lost or doubled, which the protocol sees to",
    ]
    return "\n".join(lines)


def _ended(left: int) -> str:
    return f"processes that the dead driver had left ended ({left}), " if left else ""


def _recovered(way: str, count: int) -> str:
    return f"{count} tasks stood where they should" if way == "nothing" else f"{count} tasks by {way}"


def query_of(plan: Mapping[str, Any]) -> str:
    """The query whose task the plan is for."""
    return str(plan.get("task", "")).rpartition("-")[0]


def _task_order(task: str) -> tuple[str, int]:
    query, _, number = task.rpartition("-")
    return query, int(number) if number.isdigit() else 0


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES_MAX))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-LOG_LINES:])
    except FileNotFoundError:
        return ""


def seconds_since(moment: float) -> float:
    """Seconds from a wall time to now, never negative."""
    return round(max(0.0, time.time() - moment), 2)
