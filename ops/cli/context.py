"""What the commands work on: the settings, the registry, the local stack."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.errors import InvalidConfig

if TYPE_CHECKING:
    from infra.stack import Stack
    from pipelines.registry import Registry
    from pipelines.settings import Settings

DAGSTER_MODULE = "ops.dagster.definitions"


def settings_of_here() -> Settings:
    """The settings of this folder and environment, with the running local stack's broker where none is configured."""
    from ops.environment import settings_now

    return _checked(settings_now)


def configured() -> Settings:
    """The settings as they are written, without the local stack's broker."""
    from pipelines.settings import load_settings

    return _checked(load_settings)


def _checked(load: Callable[[], Settings]) -> Settings:
    """What `load` gives. Raises `InvalidConfig`, also for a file that is not TOML and a variable that is not JSON."""
    from pydantic_settings.exceptions import SettingsError

    from pipelines.settings import FILE

    try:
        return load()
    except tomllib.TOMLDecodeError as error:
        file = os.environ.get("ROLLFORWARD_CONFIG", FILE)
        raise InvalidConfig("configuration is not TOML", file=file, error=error, hint="correct the file") from error
    except SettingsError as error:
        # Its text names the field and not the value, which may be a secret.
        raise InvalidConfig(f"configuration is wrong: {error}", hint="correct the environment or the file") from error


@contextmanager
def registry_of(settings: Settings) -> Iterator[Registry]:
    """The registry with what the log says now, closed at the end. Makes the home, where its database need not be."""
    from pipelines.home import in_home
    from pipelines.metastore.embedded import refresh
    from pipelines.registry import Registry

    in_home(settings.home)
    refresh(settings)
    registry = Registry(settings.metastore)
    try:
        yield registry
    finally:
        registry.close()


def has_registry(settings: Settings) -> bool:
    """Whether there may be a registry: looking for one must not create it."""
    prefix = "sqlite:///"
    if settings.bootstrap_servers:
        # What others have deployed is in Kafka.
        return True
    return not settings.metastore.startswith(prefix) or Path(settings.metastore.removeprefix(prefix)).exists()


def stack_of(settings: Settings) -> Stack:
    """The local stack of these settings."""
    from infra.stack import Stack

    return Stack(settings.home)


def dagster_yaml() -> Path:
    """Dagster's configuration, beside our packages."""
    return Path(__file__).resolve().parents[2] / "dagster.yaml"


def stack_environment(settings: Settings) -> dict[str, str]:
    """The settings for Dagster's processes, spelled out: they run in another folder and read no file."""
    from infra.process import MARK
    from ops.environment import driver_environment
    from statestore.channel import CA

    placeholder = settings.bootstrap_servers or "none:0"
    environment = driver_environment(settings.model_copy(update={"bootstrap_servers": placeholder}))
    ours = {name: value for name, value in environment.items() if name.startswith("ROLLFORWARD_") and name != MARK}
    if not settings.bootstrap_servers:
        # The stack's own broker, whose address the stack adds.
        ours.pop("ROLLFORWARD_BOOTSTRAP_SERVERS")
    if CA in ours:
        ours[CA] = str(Path(ours[CA]).expanduser().absolute())
    # They need no file, and one that is named would have to stay where it is.
    ours["ROLLFORWARD_CONFIG"] = os.devnull
    return ours
