"""Resetting and bootstrapping pipelines, for the command line and Dagster: what has to be true of the running processes first."""

from __future__ import annotations

from ops.environment import Progress
from ops.past import require_stopped
from pipelines.deploy import DeployedQuery
from pipelines.registry import Registry
from pipelines.reset import HISTORY, Target, WasReset, reset
from pipelines.rewind import chosen, one_by_one
from pipelines.settings import Settings


def reset_all(
    registry: Registry,
    settings: Settings,
    pipeline: str,
    query: str | None,
    target: Target,
    *,
    dry_run: bool,
    only_new: bool = False,
    tell: Progress = lambda _step, _detail: None,
) -> list[WasReset]:
    """Reset a stopped pipeline's queries, one after the other; a dry run only looks, which may be done while it runs.

    Killed between two queries the first is reset and the second is not: run it again.
    """
    if not dry_run:
        require_stopped(settings, registry, pipeline)
    found = chosen(registry.pipeline(pipeline), query, None)
    if not dry_run:
        # All are looked at first, so that one that is refused changes nothing of the others.
        reset_all(registry, settings, pipeline, query, target, dry_run=True, only_new=only_new)

    def done(one: DeployedQuery) -> WasReset:
        return reset(one, settings, registry, target, dry_run=dry_run, only_new=only_new, tell=tell)

    return [done(one) for one in found] if dry_run else one_by_one(found, done)


def bootstrap_all(
    registry: Registry,
    settings: Settings,
    pipeline: str,
    *,
    dry_run: bool,
    tell: Progress = lambda _step, _detail: None,
) -> list[WasReset]:
    """Let the queries of a pipeline that never ran begin with all history: the archive's first records, then Kafka's.

    Nothing else is needed for the hand-over: batches go on from offset to offset, wherever their records are. Raises
    `InvalidInput` for a pipeline that has computed something.
    """
    target = Target(HISTORY)
    return reset_all(registry, settings, pipeline, None, target, dry_run=dry_run, only_new=True, tell=tell)
