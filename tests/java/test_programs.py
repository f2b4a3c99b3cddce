"""What is told where a Java program cannot be had; that they run is shown by tests/interop."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from infra.errors import InfraError
from ops.environment import cache_folder
from tests.java import programs


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(InfraError, match=r"program=`Missing`.*src/main/java"):
        programs.command("Missing", cache=cache_folder())


def test_a_failed_build_shows_maven_s_log_and_leaves_nothing(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(programs.PROJECT, project, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (project / programs.SOURCES / "Broken.java").write_text("final class Broken { int number = missing; }")
    # Nothing is left that would be taken for a build.
    for _ in range(2):
        with pytest.raises(InfraError, match="missing cannot be resolved"):
            programs.command("Broken", cache=cache_folder(), project=project)
    assert not list(project.glob("target*"))
