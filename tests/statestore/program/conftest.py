"""Programs on the session's broker, closed when their test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statestore.config import StreamConfig
from tests.support.counting import KINDS, Counting, Input, config_for

Start = Callable[..., Counting]


@pytest.fixture
def feed(kafka: str, unique: str) -> Input:
    """Input, output and model of a program of its own."""
    return Input(kafka, unique)


@pytest.fixture
def config(kafka: str, unique: str, tmp_path: Path) -> StreamConfig:
    return config_for(kafka, unique, tmp_path / "state")


@pytest.fixture
def start(feed: Input, kafka: str, unique: str, tmp_path: Path) -> Iterator[Start]:
    """An open program; `config` and `options` are the task's, `of` its key-value stores."""
    started: list[Counting] = []

    def start(
        *, of: tuple[str, ...] = tuple(KINDS), folder: str = "state", config: Any = None, **options: Any
    ) -> Counting:
        program = Counting(config_for(kafka, unique, tmp_path / folder, **(config or {})), of, options)
        started.append(program)
        program.task.open()
        return program

    yield start
    for program in started:
        program.task.close()
