"""The settings of this machine: what is configured, completed with what the local stack and the caches give.

Every entry point of ops (command line, Dagster, demo) takes its settings from here, so all see the same world.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from infra.files import FileLock
from infra.jars import resolve
from infra.java import find_java
from infra.stack import Stack
from pipelines.settings import Settings, load_settings
from statestore.errors import InvalidConfig

Progress = Callable[[str, str], None]


def settings_now(**overrides: object) -> Settings:
    """Settings with the broker of the running local stack where none is configured. Starts nothing, resolves nothing."""
    settings = load_settings(**overrides)
    if settings.bootstrap_servers:
        return settings
    status = Stack(settings.home).status()
    return settings.model_copy(update={"bootstrap_servers": status.bootstrap_servers or ""})


def with_spark(settings: Settings, on_progress: Progress = lambda _step, _detail: None) -> Settings:
    """Settings with Java and the connector's jars, resolved if need be. Raises `InvalidConfig` without a Java."""
    updates: dict[str, object] = {}
    java = find_java(cache_folder())
    if settings.java_home is None:
        updates["java_home"] = java.home
    if not settings.connector_jars:
        jars = resolve("connector", java, on_progress)
        updates["connector_jars"] = os.pathsep.join(str(jar) for jar in jars)
    return _with_class_archive(settings.model_copy(update=updates), on_progress)


def _with_class_archive(settings: Settings, on_progress: Progress) -> Settings:
    """Make the archive if this machine has none; a start without it takes twice the CPU."""
    if settings.class_archive is not None:
        return settings
    # Imports Spark, which most commands do not need.
    from pipelines.engine.class_archive import archive_path, make_archive

    archive = archive_path(settings, cache_folder() / "classes")
    with FileLock(archive.with_suffix(".lock")):
        if not archive.exists():
            on_progress("class archive", "made once on a machine; it makes every start faster")
            make_archive(settings, archive)
    return settings.model_copy(update={"class_archive": archive})


def cache_folder() -> Path:
    """Where downloads are kept over wipes: `$XDG_CACHE_HOME/rollforward`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollforward"


def driver_environment(settings: Settings) -> dict[str, str]:
    """The environment of a driver process: ours, with the settings spelled out. Secrets travel here and nowhere else."""
    if not settings.bootstrap_servers:
        raise InvalidConfig("no Kafka is configured", hint="run `rollforward up`, or set bootstrap_servers")
    fields = {name: value for name, value in settings.model_dump(mode="json").items() if value is not None}
    spelled = {
        f"ROLLFORWARD_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in fields.items()
    }
    return {**os.environ, **spelled, "PYTHONUNBUFFERED": "1", "PYSPARK_PYTHON": sys.executable}
