"""A task of its own on the session's broker, with snapshots in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.task import TaskWorld, config_of


@pytest.fixture
def world(kafka: str, unique: str, tmp_path: Path) -> Iterator[TaskWorld]:
    world = TaskWorld(
        kafka, unique, tmp_path / "state", config_of(tmp_path / "objects", pin_life_s=600, minimum_age_s=1200)
    )
    yield world
    world.close()
