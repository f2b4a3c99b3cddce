"""Prometheus and Alertmanager for the tests, fetched into the cache where the machine has none."""

from __future__ import annotations

import pytest

from infra import jars, tools
from tests.ops.dagster_world import instance, world

__all__ = ["instance", "world"]


@pytest.fixture(scope="session")
def fetched() -> None:
    """Both programs are there."""
    tools.fetch(jars.default_cache())
