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
from infra.java import find_java
from infra.s3 import BUCKET
from infra.stack import Stack
from pipelines.settings import Settings, load_settings
from statestore.errors import InvalidConfig

Progress = Callable[[str, str], None]


def settings_now(**overrides: object) -> Settings:
    """Settings with the running local stack's broker, and its S3 server, where none is configured. Starts and resolves nothing."""
    return on_local_stack(load_settings(**overrides))


def on_local_stack(settings: Settings) -> Settings:
    """These settings, with what the local stack of their home gives."""
    updates: dict[str, object] = {}
    stack = Stack(settings.home)
    if not settings.bootstrap_servers:
        updates["bootstrap_servers"] = stack.status().bootstrap_servers or ""
    if not settings.alertmanager_url:
        updates["alertmanager_url"] = stack.status().alertmanager_url or ""
    urls = (settings.snapshot_url, settings.archive_url)
    if any(url.startswith("s3://") for url in urls) and not settings.s3_endpoint_url:
        updates |= _local_s3(settings, stack)
    return settings.model_copy(update=updates)


def _local_s3(settings: Settings, stack: Stack) -> dict[str, object]:
    """The local stack's S3 server, if there is one and it holds the bucket that is asked for.

    Whether it runs just now is not asked: a process that starts meanwhile would take Amazon's bucket of that name.
    """
    endpoint = stack.s3.endpoint
    urls = (settings.snapshot_url, settings.archive_url)
    if endpoint is None or not any(url.removeprefix("s3://").partition("/")[0] == BUCKET for url in urls):
        return {}
    updates: dict[str, object] = {"s3_endpoint_url": endpoint, "s3_addressing": "path"}
    if not settings.s3_credentials_file:
        updates["s3_credentials_file"] = str(stack.s3.credentials_file)
    if not settings.s3_region:
        updates["s3_region"] = "us-east-1"
    return updates


def with_spark(settings: Settings, on_progress: Progress = lambda _step, _detail: None) -> Settings:
    """Settings with Java and its class archive. Raises `InvalidConfig` without a Java."""
    updates: dict[str, object] = {}
    java = find_java(cache_folder())
    if settings.java_home is None:
        updates["java_home"] = java.home
    return _with_class_archive(settings.model_copy(update=updates), on_progress)


def _with_class_archive(settings: Settings, on_progress: Progress) -> Settings:
    """Make the archive if this machine has none; a start without it takes twice the CPU."""
    if settings.class_archive is not None:
        return settings
    # Most commands start no driver.
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
