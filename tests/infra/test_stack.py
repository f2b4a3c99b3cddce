"""The stack: `up` is harmless to repeat and safe to race, `down` leaves nothing whatever has happened before."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra import jars, process
from infra.broker import answers
from infra.dagster import DAEMON, WEBSERVER
from infra.errors import CopiedHome, InfraError, StartFailed
from infra.files import FileLock
from infra.process import ProcessRecord, ProcessSpec
from infra.stack import MADE_BY_UP, Stack, what_is_left

pytestmark = pytest.mark.usefixtures("leftovers")
Leftovers = Callable[[], list[int]]
DEFINITIONS = Path(__file__).parent / "definitions"
ENTRIES = {".made-by-up", "kafka", "logs", "run", "stack.json", "stack.lock"}


def with_dagster(module: str) -> dict[str, Any]:
    return {
        "dagster_module": module,
        "dagster_yaml": DEFINITIONS / "dagster.yaml",
        "env": {"PYTHONPATH": str(DEFINITIONS)},
    }


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)], timeout=60)


def test_stack_comes_up_once_and_goes_down_whole(
    stack: Stack, leftovers: Leftovers, record_property: Callable[[str, object], None]
) -> None:
    steps: list[tuple[str, str]] = []
    began = time.monotonic()
    first = stack.up(on_progress=lambda *step: steps.append(step), **with_dagster("tiny_definitions"))
    record_property("up_s", round(time.monotonic() - began, 2))
    assert ("kafka", "s3", DAEMON, WEBSERVER) == first.started
    assert {"running"} == {component.state for component in first.components}
    assert first.bootstrap_servers == first.component("kafka").address
    assert first.dagster_url == first.component(WEBSERVER).address
    assert ("dagster", f"answers on {first.dagster_url}") == steps[-1]
    assert first.to_json() == json.loads((stack.home / "stack.json").read_text())
    environ = psutil.Process(first.component(DAEMON).pid).environ()
    assert first.bootstrap_servers == environ["ROLLFORWARD_BOOTSTRAP_SERVERS"]
    assert str(stack.home / "dagster") == environ["DAGSTER_HOME"]

    steps.clear()
    second = stack.up(on_progress=lambda *step: steps.append(step), **with_dagster("tiny_definitions"))
    assert () == second.started
    assert [component.pid for component in first.components] == [component.pid for component in second.components]
    assert f"already running on {first.bootstrap_servers}, pid {first.components[0].pid}" == steps[1][1]

    kill(first.component(DAEMON).pid)
    assert ["running", "running", "dead", "running"] == [component.state for component in stack.status().components]
    third = stack.up(**with_dagster("tiny_definitions"))
    assert (DAEMON,) == third.started
    assert third.component(WEBSERVER).pid == first.component(WEBSERVER).pid

    began = time.monotonic()
    down = stack.down()
    record_property("down_s", round(time.monotonic() - began, 2))
    assert {"stopped"} == {component.state for component in down.components}
    assert [] == leftovers()
    assert (stack.home / "kafka" / "data").is_dir()


def test_failing_component_is_told_and_what_was_started_is_stopped(stack: Stack, leftovers: Leftovers) -> None:
    with pytest.raises(StartFailed, match="broken on purpose"):
        stack.up(components=["s3", "dagster"], **with_dagster("broken_definitions"))
    assert [] == leftovers()
    assert {"stopped"} == {component.state for component in stack.status().components}


def test_failing_component_leaves_alone_what_ran_before(stack: Stack, leftovers: Leftovers) -> None:
    before = stack.up(components=["kafka"])
    with pytest.raises(InfraError, match="configuration cannot be read"):
        stack.up(dagster_module="tiny_definitions", dagster_yaml=stack.home / "none.yaml")
    assert [before.component("kafka").pid] == leftovers()


@pytest.mark.parametrize("damage", ["cut short", "missing", "killed"])
def test_down_leaves_no_process_whatever_the_files_say(stack: Stack, leftovers: Leftovers, damage: str) -> None:
    status = stack.up(components=["s3"])
    files = [stack.home / "stack.json", stack.home / "run" / "s3.json"]
    if damage == "cut short":
        for file in files:
            file.write_text(file.read_text()[:10])
    elif damage == "missing":
        for file in files:
            file.unlink()
    else:
        kill(status.component("s3").pid)
        assert "dead" == stack.status().component("s3").state
    stack.down()
    assert [] == leftovers()
    assert "stopped" == stack.status().component("s3").state


def _up(home: Path, said: multiprocessing.SimpleQueue) -> None:
    status = Stack(home).up(components=["kafka"])
    said.put((len(status.started), status.bootstrap_servers))


def test_two_ups_at_once_start_one_broker(stack: Stack, leftovers: Leftovers) -> None:
    context = multiprocessing.get_context("spawn")
    said = context.SimpleQueue()
    both = [context.Process(target=_up, args=(stack.home, said)) for _ in range(2)]
    for one in both:
        one.start()
    results = sorted(said.get() for _ in both)
    for one in both:
        one.join(30)
    address = stack.status().bootstrap_servers
    assert [(0, address), (1, address)] == results
    assert 1 == len(leftovers())
    assert address is not None
    assert answers(int(address.split(":")[1]))


def test_wipe_deletes_a_home_of_ours_and_not_the_cache(stack: Stack) -> None:
    stack.up(components=["kafka"])
    assert ENTRIES == {path.name for path in stack.home.iterdir()}
    stack.down(wipe=True)
    assert not stack.home.exists()
    assert jars.folder_of("kafka", jars.read_lock("kafka"), stack.cache).is_dir()
    stack.down(wipe=True)
    assert not stack.home.exists()


def test_wipe_of_a_home_that_was_not_ours_deletes_only_our_entries(stack: Stack) -> None:
    stack.home.mkdir()
    (stack.home / "letter.txt").touch()
    stack.up(components=["s3"])
    stack.down(wipe=True)
    assert ["letter.txt"] == [path.name for path in stack.home.iterdir()]


@pytest.mark.parametrize(
    ("theirs", "left"),
    [
        (["backups"], ["backups"]),
        (["letter.txt", "metastore.db", "state"], ["letter.txt", "state"]),
        # An operator's own, beside what a deploy before the first `up` has made.
        (["backups", "metastore.db", "metastore.db-wal"], ["backups"]),
    ],
)
def test_wipe_leaves_what_may_be_of_others_and_says_so(stack: Stack, theirs: list[str], left: list[str]) -> None:
    for name in theirs:
        (stack.home / name).mkdir(parents=True)
    stack.up(components=[])
    steps: list[tuple[str, str]] = []
    stack.down(wipe=True, on_progress=lambda *step: steps.append(step))
    assert left == sorted(path.name for path in stack.home.iterdir())
    assert ("data", f"of {stack.home} is left: {', '.join(left)}") == steps[-1]


def test_of_many_that_a_wipe_leaves_some_are_named(tmp_path: Path) -> None:
    assert "" == what_is_left(tmp_path)
    for number in range(12):
        (tmp_path / f"{number:02}").touch()
    assert "00, 01, 02, 03, 04, 05, 06, 07, 08, 09, 2 more" == what_is_left(tmp_path)
    assert "" == what_is_left(tmp_path / "none")


def test_a_wipe_deletes_the_database_first_and_its_own_mark_and_lock_last(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.up(components=[])
    database = ["metastore.db", "metastore.db-shm", "metastore.db-wal"]
    for name in ("api-token", *database, "zoo"):
        (stack.home / name).touch()
    deleted: list[str] = []
    unlink = Path.unlink

    def noted(path: Path, missing_ok: bool = False) -> None:
        if path.parent == stack.home:
            deleted.append(path.name)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", noted)
    stack.down(wipe=True)
    # What `down` itself deletes goes before.
    assert "stack.json" == deleted[0]
    assert [*database, "api-token", "zoo", ".made-by-up", "stack.lock"] == deleted[1:]


def test_status_of_nothing_is_stopped_and_makes_nothing(stack: Stack) -> None:
    status = stack.status()
    assert {"stopped"} == {component.state for component in status.components}
    assert (None, None) == (status.bootstrap_servers, status.dagster_url)
    assert not stack.home.exists()


def start_sleeping(stack: Stack) -> ProcessRecord:
    """A process that is recorded as the stack's broker."""
    record = stack.home / "run" / "kafka.json"
    spec = ProcessSpec(
        "kafka", ("/bin/sleep", "600"), {}, stack.home / "kafka", stack.home / "logs" / "kafka.log", record
    )
    return process.start(spec)


def test_copy_of_a_home_that_runs_is_refused_and_ends_nothing(stack: Stack, tmp_path: Path) -> None:
    started = start_sleeping(stack)
    shutil.copytree(stack.home, tmp_path / "copy")
    copy = Stack(tmp_path / "copy")
    assert "dead" == copy.status().component("kafka").state
    for refused in (lambda: copy.up(components=["s3"]), copy.down, lambda: copy.down(wipe=True)):
        with pytest.raises(CopiedHome, match=f"pid=`{started.pid}`"):
            refused()
    assert "running" == stack.status().component("kafka").state
    assert (copy.home / "kafka").is_dir()
    stack.down()
    assert "stopped" == copy.down().component("kafka").state


def test_moved_home_runs_on_and_goes_down_whole(stack: Stack, tmp_path: Path, leftovers: Leftovers) -> None:
    started = start_sleeping(stack)
    stack.home.rename(tmp_path / "moved")
    moved = Stack(tmp_path / "moved")
    assert "running" == moved.status().component("kafka").state
    assert [started.pid] == leftovers()
    moved.down(wipe=True)
    assert [] == leftovers()
    assert not (moved.home / "kafka").exists()


def mode_of(path: Path) -> str:
    return oct(path.stat().st_mode & 0o777)


def test_home_and_what_is_in_it_are_for_their_user_alone(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "new")
    with FileLock(stack.home / "stack.lock"):
        start_sleeping(stack)
    assert {"0o700"} == {mode_of(stack.home / name) for name in (".", "run", "logs", "kafka")}
    stack.down(wipe=True)


@pytest.mark.parametrize(("made_by_up", "mode"), [(True, "0o700"), (False, "0o755")])
def test_home_that_up_made_once_is_closed_and_another_folder_left(tmp_path: Path, made_by_up: bool, mode: str) -> None:
    stack = Stack(tmp_path / "old")
    stack.home.mkdir()
    stack.home.chmod(0o755)
    (stack.home / (MADE_BY_UP if made_by_up else "theirs")).touch()
    stack.up(components=[])
    assert mode == mode_of(stack.home)


def test_wrong_arguments_are_refused_before_anything_starts(stack: Stack) -> None:
    with pytest.raises(InfraError, match="unknown=`zookeeper` known=`kafka, s3, dagster, monitoring`"):
        stack.up(components=["zookeeper"])
    with pytest.raises(InfraError, match="hint: pass dagster_module and dagster_yaml"):
        stack.up()
    assert not stack.home.exists()
