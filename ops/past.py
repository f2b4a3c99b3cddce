"""Going back and cloning, for the command line: what has to be true of the running processes first."""

from __future__ import annotations

from ops import control
from ops.environment import Progress
from pipelines.deploy import DeployedQuery
from pipelines.metastore.embedded import require_current
from pipelines.registry import STOPPED, Registry
from pipelines.rewind import Rewound, chosen, one_by_one, rewind
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
    """Bring a stopped pipeline's queries back, or only look whether that is possible, which may be done while it runs.

    Ended between two queries the first is brought back and the second is not: run it again.
    """
    if not dry_run:
        require_stopped(settings, registry, pipeline)
    found = chosen(registry.pipeline(pipeline), query, batch)
    if not dry_run and len(found) > 1:
        # All are looked at first, so that one that is refused changes nothing of the others.
        rewind_all(registry, settings, pipeline, query, batch=batch, at_ms=at_ms, dry_run=True, tell=tell)

    def rewound(one: DeployedQuery) -> Rewound:
        return rewind(one, settings, registry, batch=batch, at_ms=at_ms, dry_run=dry_run, tell=tell)

    return [rewound(one) for one in found] if dry_run else one_by_one(found, rewound)


def require_stopped(settings: Settings, registry: Registry, pipeline: str, *, hint: str = "") -> None:
    """Raises `InvalidInput` while the pipeline runs, is being started or is to run: somebody would start it in the middle.

    What is to run the log says, not what was seen of it last. Raises `MetastoreDegraded`, `Unavailable`.
    """
    require_current(settings)
    if control.is_running(settings, registry, pipeline) or registry.pipeline(pipeline).desired != STOPPED:
        hint = hint or f"run `rollforward stop {pipeline}` first"
        raise InvalidInput("pipeline is to run", pipeline=pipeline, hint=hint)
