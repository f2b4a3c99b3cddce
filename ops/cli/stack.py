"""`up`, `status`, `down`: the local stack, and the pipelines that run in its home."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.context import (
    DAGSTER_MODULE,
    configured,
    dagster_yaml,
    has_registry,
    registry_of,
    settings_of_here,
    stack_environment,
    stack_of,
)
from ops.cli.options import Json
from ops.cli.output import answer, duration, progress, say, table

if TYPE_CHECKING:
    from infra.monitoring import Monitored
    from infra.stack import StackStatus
    from ops.control import PipelineStatus
    from ops.environment import Progress
    from pipelines.registry import Registry
    from pipelines.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog="[bold]rollforward up[/] starts what is missing and leaves the rest alone. With bootstrap_servers "
        "configured it starts Dagster only, for your Kafka."
    )(up)
    app.command(epilog="[bold]rollforward status --json | jq .pipelines[/]")(status)
    app.command(
        epilog="[bold]rollforward down[/] keeps the data; [bold]rollforward up[/] finds it again. "
        "[bold]rollforward down --wipe[/] deletes it."
    )(down)


def up(
    fetch_monitoring: Annotated[
        bool,
        typer.Option(
            "--fetch-monitoring", help="Fetch Prometheus and Alertmanager with apt, for you alone, without root."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Start the local stack: a Kafka broker, an S3 server and Dagster; Prometheus and Alertmanager if they are there."""
    settings = configured()
    with progress("Starting the local stack") as tell:
        if fetch_monitoring:
            from infra import tools

            tools.fetch(stack_of(settings).cache, tell)
        now = start_stack(settings, tell)
    if json:
        answer(now.to_json())
        return
    say(f"Kafka    {now.bootstrap_servers or settings.bootstrap_servers}")
    if now.s3_endpoint:
        say(f"S3       {now.s3_endpoint}")
    say(f"Dagster  {now.dagster_url}")
    if now.prometheus_url:
        say(f"Alerts   {now.prometheus_url} (Prometheus), {now.alertmanager_url} (Alertmanager)")
    else:
        say("Alerts   no: Prometheus is not installed; rollforward up --fetch-monitoring")
    say("Next: rollforward deploy FILE --pipeline NAME")


def start_stack(settings: Settings, tell: Progress) -> StackStatus:
    """Start what is missing. `settings` are the configured ones, without the stack's own broker in them."""
    from infra.stack import MONITORING

    components = ["dagster"] if settings.bootstrap_servers else ["kafka", "s3", "dagster"]
    stack = stack_of(settings)
    if stack.monitoring.installed():
        components.append(MONITORING)
    return stack.up(
        components=components,
        monitored=monitored(settings),
        dagster_module=DAGSTER_MODULE,
        dagster_yaml=dagster_yaml(),
        env=stack_environment(settings),
        on_progress=tell,
    )


def monitored(settings: Settings) -> Monitored:
    """What Prometheus watches of this home."""
    from infra.monitoring import Monitored
    from ops import observability

    rules = Path(observability.__file__).with_name("rules.yml")
    token = settings.home / "api-token"
    return Monitored(settings.home / "metrics", rules, settings.alert_webhook_url, token)


def status(json: Json = False) -> None:
    """Show what runs: the stack's processes and every pipeline."""
    settings = settings_of_here()
    stack = stack_of(settings).status()
    pipelines = pipeline_statuses(settings)
    if json:
        kafka = stack.bootstrap_servers or settings.bootstrap_servers or None
        answer({"stack": stack.to_json(), "bootstrap_servers": kafka, "pipelines": [p.to_json() for p in pipelines]})
        return
    if settings.bootstrap_servers and not stack.bootstrap_servers:
        say(f"Kafka is elsewhere: {settings.bootstrap_servers}\n")
    table(
        ("process", "state", "address", "pid", "up for"),
        [(c.name, c.state, c.address, c.pid and str(c.pid), duration(c.uptime_s)) for c in stack.components],
    )
    if not any(component.state == "running" for component in stack.components):
        say("\nThe local stack does not run: rollforward up")
    if pipelines:
        say()
        table(
            ("pipeline", "desired", "state", "pid", "heartbeat", "records", "lag", "newest batches", "note"),
            [_pipeline_row(pipeline) for pipeline in pipelines],
        )
    elif stack.bootstrap_servers or settings.bootstrap_servers:
        say("\nNo pipeline is deployed: rollforward deploy FILE --pipeline NAME")


def _pipeline_row(pipeline: PipelineStatus) -> tuple[object, ...]:
    batches = ", ".join(f"{query} {batch}" for query, batch in pipeline.newest_batches.items())
    age = f"{duration(pipeline.heartbeat_age_s)} ago" if pipeline.alive else None
    note = pipeline.needs_recovery or pipeline.error or (pipeline.spark_url and f"Spark: {pipeline.spark_url}")
    pid = pipeline.pid and str(pipeline.pid)
    return (
        *(pipeline.pipeline, pipeline.desired, pipeline.state, pid, age),
        *(pipeline.records, pipeline.lag, batches, note),
    )


def pipeline_statuses(settings: Settings) -> list[PipelineStatus]:
    """Every deployed pipeline's state; creates nothing where nothing was ever deployed."""
    if not has_registry(settings):
        return []
    from ops import control

    with registry_of(settings) as registry:
        return [control.status(registry, row.name) for row in registry.pipelines()]


def down(
    wipe: Annotated[bool, typer.Option("--wipe", help="Delete the data too: topics, stores, history.")] = False,
    json: Json = False,
) -> None:
    """Stop the pipelines of this home and the local stack.

    Leaves no process; where the metastore does not answer, none of the stack and no detached driver.
    """
    settings = settings_of_here()
    with progress("Stopping") as tell:
        stopped = stop_everything(settings, tell, wipe=wipe)
    if json:
        answer(stopped)
        return
    for name in stopped["stopped_pipelines"]:
        say(f"pipeline {name} stopped")
    say(f"Nothing runs any more. {_data_text(settings.home, wipe=wipe)}")


def _data_text(home: Path, *, wipe: bool) -> str:
    if not wipe:
        return f"The data stays in {home}."
    from infra.stack import what_is_left

    left = what_is_left(home)
    return (
        f"The stack's data is deleted. Left in {home}, which was not empty before: {left}"
        if left
        else f"{home} is deleted."
    )


def stop_everything(settings: Settings, tell: Progress, *, wipe: bool = False) -> dict[str, Any]:
    """Pipelines first, so that they end between two batches, then the stack.

    What is wrong with the registry is raised when all of it has ended, unless its database went with the wipe.
    """
    import psutil

    from ops.environment import on_local_stack

    stack = stack_of(settings)
    # The registry of a copied home names the original's drivers.
    stack.require_own()
    try:
        pipelines = stop_pipelines(on_local_stack(settings), tell)
    except Exception as error:
        # Whatever it is: there is no other command that ends these processes.
        pipelines = _stop_without_registry(settings, tell, error)
        if not wipe:
            raise
        status = stack.down(wipe=True, on_progress=tell)
        if isinstance(error, psutil.Error) or not _is_wiped(settings.metastore, settings.home):
            # A driver that could not be ended, or a database that is as wrong as before.
            raise
    else:
        status = stack.down(wipe=wipe, on_progress=tell)
    return {"stopped_pipelines": pipelines, **status.to_json()}


def _stop_without_registry(settings: Settings, tell: Progress, error: Exception) -> list[str]:
    """Drivers as the machine's processes tell of them, then the stack, and drivers that Dagster has started meanwhile."""
    from ops import control

    reason = str(error).partition("\n")[0]
    tell("pipelines", f"the metastore does not answer: {reason}")
    tell("pipelines", "ending the detached drivers of this home; end a `rollforward run` in its own terminal")
    ended = control.end_drivers_of(settings.home)
    stack_of(settings).down(on_progress=tell)
    names = sorted({*ended, *control.end_drivers_of(settings.home)})
    for name in names:
        tell(name, "stopped")
    return names


def _is_wiped(metastore: str, home: Path) -> bool:
    """Whether the database of this URL was in the home, and is not any more."""
    database = Path(metastore.removeprefix("sqlite:///").partition("?")[0])
    return database.is_relative_to(home) and not database.exists()


def stop_pipelines(settings: Settings, tell: Progress) -> list[str]:
    """End every driver of this registry on this machine, of dropped pipelines too; gives the names of those that ran."""
    if not has_registry(settings):
        return []
    from ops import control

    stopped = []
    with registry_of(settings) as registry:
        deployed = {row.name for row in registry.pipelines()}
        # A driver that hangs has not seen that its pipeline was dropped.
        for name in sorted(deployed | set(registry.drivers())):
            driver = registry.driver(name)
            if driver is not None and control.is_elsewhere(driver) and control.is_alive(driver):
                tell(name, f"runs on {driver.host} and is left alone")
                continue
            if name in deployed:
                _want_stopped(settings, registry, name, tell)
            driver = registry.driver(name)
            if driver is not None and control.is_alive(driver):
                tell(name, f"driver {driver.pid} finishes its batch")
            if _end(settings, registry, name, tell):
                stopped.append(name)
    return stopped


def _want_stopped(settings: Settings, registry: Registry, name: str, tell: Progress) -> None:
    """Nothing is to be left running, whatever the log says of it later; that is told of what runs or was to run."""
    from ops import control
    from pipelines.metastore.embedded import want
    from pipelines.registry import STOPPED
    from statestore.errors import InvalidConfig, Unavailable, Unrecoverable

    try:
        want(name, STOPPED, settings, registry, quickly=True)
    except (InvalidConfig, Unavailable, Unrecoverable) as error:
        if control.is_running(settings, registry, name):
            tell(name, f"is ended, but the metastore may still want it to run: {error.message}")
        elif registry.pipeline(name).desired != STOPPED:
            tell(name, f"does not run, but the metastore may still want it to: {error.message}")


def _end(settings: Settings, registry: Registry, name: str, tell: Progress) -> bool:
    """End its driver, and one that is being started; whether any ran."""
    from ops import control
    from statestore.errors import Unavailable

    try:
        return control.end_running(settings, registry, name, whatever_desired=True, on_progress=tell)
    except Unavailable as error:
        # The others are to be ended all the same.
        tell(name, str(error))
        return False
