"""A metastore inside of another process, for as long as one statement or one look: nothing but Kafka is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from pipelines.metastore.degraded import Fault
from pipelines.metastore.lent import keep
from pipelines.metastore.statement import Statement, deploy_script, start_pipeline, stop_pipeline
from pipelines.metastore.validate import RUNNING, STOPPED, check
from pipelines.registry import PipelineDefinition, Registry
from pipelines.settings import Settings
from statestore.errors import Unavailable

if TYPE_CHECKING:
    from pipelines.metastore.service import Metastore, Outcome

log = structlog.get_logger()
# A look must not keep a person waiting for a broker that is away: what was applied before is shown.
LOOK_TIMEOUT_S = 3.0


@contextmanager
def metastore(settings: Settings) -> Iterator[Metastore]:
    """Opened and closed."""
    # Kafka's library is loaded only where there is a log to look at.
    from pipelines.metastore.service import Metastore

    opened = Metastore(settings)
    try:
        yield opened
    finally:
        opened.close()


def execute(statement: Statement, settings: Settings, key: str | None = None) -> Outcome:
    """Run one statement."""
    # A wrong one is refused even where there is no Kafka.
    check(statement, settings.tasks)
    with metastore(settings) as opened:
        return opened.execute(statement, key)


def deploy(
    sql: str, pipeline: str, settings: Settings, registry: Registry, *, origin: str = ""
) -> tuple[PipelineDefinition, bool]:
    """Deploy a script; gives the definition and whether it changed anything. Raises as `Metastore.execute` does."""
    outcome = execute(deploy_script(sql, pipeline, origin=origin), settings)
    return registry.pipeline(pipeline), outcome.changed


def want(
    pipeline: str,
    desired: str,
    settings: Settings,
    registry: Registry,
    *,
    for_now: bool = False,
    quickly: bool = False,
) -> bool:
    """Make the pipeline run or stop; False, and nothing is written, if the log's last word was the same.

    A pipeline that runs as it was seen last goes on where the log cannot be trusted or asked. To stop one, and to start one
    that was stopped, raises `MetastoreDegraded` and `Unavailable` then; with `quickly` after a look where it was stopped.
    Who wants it to run wants that behind a `rollforward run` of this home, too, unless it is that itself: `for_now`.
    """
    if desired == STOPPED:
        _look_to_stop(pipeline, settings, registry, quickly=quickly)
    else:
        refresh(settings)
        if not for_now:
            keep(settings.home, pipeline)
    if registry.pipeline(pipeline).desired == desired:
        return False
    statement = start_pipeline(pipeline) if desired == RUNNING else stop_pipeline(pipeline)
    return execute(statement, settings).changed


def _look_to_stop(pipeline: str, settings: Settings, registry: Registry, *, quickly: bool) -> None:
    """Bring the projection up to the log. One that is stopped as it was seen last may be started by now."""
    try:
        require_current(for_a_look(settings) if quickly else settings)
    except Unavailable:
        # A statement waits for longer than a look.
        if not quickly or registry.pipeline(pipeline).desired == STOPPED:
            raise


def require_current(settings: Settings) -> None:
    """Bring the projection up to the log, before something that it allows is destroyed or written anew.

    Without Kafka configured nothing can be. Raises `MetastoreDegraded`, `Unavailable`.
    """
    if not settings.bootstrap_servers:
        return
    with metastore(settings) as opened:
        fault = opened.refresh()
        if fault is not None:
            raise fault.error(opened.log.topic_name)


def for_a_look(settings: Settings) -> Settings:
    """The settings of who looks, and waits for a broker no longer than `LOOK_TIMEOUT_S`."""
    return settings.model_copy(update={"request_timeout_s": min(LOOK_TIMEOUT_S, settings.request_timeout_s)})


def refresh(settings: Settings) -> Fault | None:
    """Bring the projection up to the log, if Kafka is configured and answers soon; gives why the log is not trusted.

    For looking. What destroys something asks `require_current`.
    """
    if not settings.bootstrap_servers:
        return None
    try:
        with metastore(for_a_look(settings)) as opened:
            return opened.refresh()
    except Unavailable as error:
        log.warning("metastore is read as it was last seen", error=str(error))
        return None
