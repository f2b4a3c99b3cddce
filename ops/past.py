"""Going back and cloning, for the command line: what has to be true of the running processes first."""

from __future__ import annotations

from ops import control
from ops.environment import Progress
from pipelines.registry import STOPPED, Registry
from pipelines.rewind import Rewound, chosen, rewind
from pipelines.settings import Settings
from statestore.errors import InvalidInput


def rewind_all(
    registry: Registry,
    settings: Settings,
    pipeline: str,
    query: str | None,
    *,
    batch: int | None,
    at_ms: int | None,
    dry_run: bool,
    tell: Progress,
) -> list[Rewound]:
    """Bring a stopped pipeline's queries back, or only look whether that is possible, which may be done while it runs."""
    row = registry.pipeline(pipeline)
    found = chosen(row, query, batch)
    if not dry_run:
        require_stopped(registry, pipeline)
    return [rewind(q, settings, registry, batch=batch, at_ms=at_ms, dry_run=dry_run, tell=tell) for q in found]


def require_stopped(registry: Registry, pipeline: str, *, hint: str = "") -> None:
    """Raises `InvalidInput` while the pipeline runs or is to run: somebody would start it in the middle."""
    driver = registry.driver(pipeline)
    running = driver is not None and control.is_alive(driver)
    if running or registry.pipeline(pipeline).desired != STOPPED:
        hint = hint or f"run `rollforward stop {pipeline}` first"
        raise InvalidInput("pipeline is to run", pipeline=pipeline, hint=hint)
