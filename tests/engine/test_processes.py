"""A process that was written down is known again when the clock has been set, and no other one is taken for it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipelines import processes
from pipelines.processes import runs, started_of


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.mark.parametrize("moved_s", [-86_400, -1, 1, 3, 1_700_000_000])
def test_a_process_is_known_when_the_clock_has_been_set(
    child: int, monkeypatch: pytest.MonkeyPatch, moved_s: int
) -> None:
    started, created, moved = started_of(child), psutil.Process(child).create_time(), psutil.boot_time() + moved_s
    # The kernel computes the time of its boot from the clock.
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: moved)
    assert psutil.Process(child).create_time() == pytest.approx(created + moved_s)
    assert runs(child, started)


def test_another_process_of_the_same_number_is_none(child: int) -> None:
    assert runs(child) and runs(child, started_of(child))
    assert not runs(child, started_of(child) - 2)
    assert not runs(child, started_of(child) + 2)
    assert not runs(child, 0.0)


def test_what_an_earlier_build_wrote_is_understood(child: int) -> None:
    created = psutil.Process(child).create_time()
    assert runs(child, created)
    assert not runs(child, created - 2)


def test_the_same_number_and_beginning_in_another_boot_is_another_process(
    child: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = started_of(child)
    first = processes._BOOT_ID.read_text()[:4]
    (tmp_path / "boot_id").write_text("0000" if first != "0000" else "0001")
    monkeypatch.setattr(processes, "_BOOT_ID", tmp_path / "boot_id")
    assert not runs(child, started)
    assert runs(child, started_of(child))


def test_a_system_without_a_boot_id_has_times_of_day(
    child: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "_BOOT_ID", tmp_path / "none")
    assert psutil.Process(child).create_time() == started_of(child)
    assert runs(child, started_of(child))
