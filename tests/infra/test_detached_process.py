"""Detached processes: found by identity, not by number; ended whatever they do and whoever else has died."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from infra import process
from infra.errors import CopiedHome, InfraError, StartFailed
from infra.files import write_json
from infra.process import MARK, ProcessRecord, ProcessSpec

pytestmark = pytest.mark.usefixtures("leftovers")
Leftovers = Callable[[], list[int]]

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
while True: time.sleep(60)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=len(sys.argv) > 2)
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(600)
"""
STARTER = """
import sys
from pathlib import Path
from infra import process
folder = Path(sys.argv[2])
spec = process.ProcessSpec("own", ("/bin/sleep", "600"), {}, folder, folder / "own.log", folder / "own.json")
open(sys.argv[1], "w").write(str(process.start(spec).pid))
process.await_ready(spec, process.read_record(spec.record), lambda: False, timeout_s=600)
"""


def spec_of(folder: Path, *command: str) -> ProcessSpec:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    return ProcessSpec("test", command, env, folder, folder / "logs" / "test.log", folder / "test.json")


def start_python(folder: Path, code: str, *args: str) -> tuple[ProcessSpec, ProcessRecord, str]:
    """Starts a script that writes its first argument's file when it is ready; returns that file's text too."""
    ready = folder / "ready"
    spec = spec_of(folder, sys.executable, "-c", code, str(ready), *args)
    record = process.start(spec)
    process.await_ready(spec, record, ready.exists, timeout_s=60)
    if args or code == PARENT:
        process.await_ready(spec, record, lambda: ready.read_text() != "", timeout_s=60)
    return spec, record, ready.read_text()


def test_process_leads_its_own_session_with_an_explicit_environment(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "/bin/sleep", "600")
    record = process.start(spec)
    process.await_ready(spec, record, lambda: psutil.Process(record.pid).name() == "sleep", timeout_s=60)
    assert record == process.read_record(spec.record)
    assert process.is_alive(record)
    assert (record.pid, record.pid) == (os.getsid(record.pid), os.getpgid(record.pid))
    assert {**spec.env, MARK: str(spec.record), "PWD": str(tmp_path)} == {
        key: value for key, value in psutil.Process(record.pid).environ().items() if key not in ("OLDPWD", "_", "SHLVL")
    }
    assert process.stop(spec.record)
    assert not process.is_alive(record)
    assert not spec.record.exists()
    assert not process.stop(spec.record)


def test_signals_are_at_their_defaults_whatever_the_starter_ignores(tmp_path: Path) -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        spec = spec_of(tmp_path, "/bin/sleep", "600")
        record = process.start(spec)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    ignored = next(
        line for line in Path(f"/proc/{record.pid}/status").read_text().splitlines() if line.startswith("SigIgn")
    )
    assert 0 == int(ignored.split()[1], 16) & (1 << (signal.SIGINT - 1) | 1 << (signal.SIGTERM - 1))
    process.stop(spec.record)


def test_pipe_of_the_starter_is_not_inherited(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "/bin/sleep", "600")
    receiver, sender = os.pipe()
    os.set_inheritable(sender, True)
    process.start(spec)
    os.close(sender)
    os.set_blocking(receiver, False)
    assert os.read(receiver, 1) == b""
    os.close(receiver)
    process.stop(spec.record)


def test_stubborn_process_is_killed_after_the_grace(tmp_path: Path) -> None:
    spec, record, _ = start_python(tmp_path, STUBBORN)
    began = time.monotonic()
    assert process.stop(spec.record, grace_s=0.3)
    assert not process.is_alive(record)
    assert 0.3 <= time.monotonic() - began < 30


@pytest.mark.parametrize("args", [(), ("own session",)])
def test_children_end_with_their_parent_even_if_it_was_killed_alone(
    tmp_path: Path, leftovers: Leftovers, args: tuple[str, ...]
) -> None:
    spec, record, child = start_python(tmp_path, PARENT, *args)
    os.kill(record.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(record.pid)], timeout=60)
    assert not process.is_alive(record)
    assert [int(child)] == leftovers()
    assert process.stop(spec.record)
    assert [] == leftovers()


def test_child_started_by_this_module_outlives_its_starter(tmp_path: Path) -> None:
    spec, _, own = start_python(tmp_path, STARTER, str(tmp_path / "other"))
    process.stop(spec.record)
    record = process.read_record(tmp_path / "other" / "own.json")
    assert record is not None
    assert int(own) == record.pid
    assert process.is_alive(record)
    assert process.stop(tmp_path / "other" / "own.json")


def test_reused_pid_is_neither_taken_for_ours_nor_ended(tmp_path: Path) -> None:
    other = process.start(spec_of(tmp_path / "other", "/bin/sleep", "600"))
    stale = dataclasses.replace(other, since_boot_s=other.since_boot_s - 100)
    write_json(tmp_path / "stale.json", dataclasses.asdict(stale))
    assert not process.is_alive(stale)
    assert not process.stop(tmp_path / "stale.json")
    assert process.is_alive(other)
    process.stop(tmp_path / "other" / "test.json")


@pytest.mark.parametrize("moved_s", [-86_400, 3, 1_700_000_000])
def test_process_is_known_when_the_clock_has_been_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved_s: int
) -> None:
    spec = spec_of(tmp_path, "/bin/sleep", "600")
    record = process.start(spec)
    moved, now = psutil.boot_time() + moved_s, time.time() + moved_s
    # The kernel computes the time of its boot from the clock.
    with monkeypatch.context() as clock:
        clock.setattr(psutil._psplatform, "boot_time", lambda: moved)
        clock.setattr(time, "time", lambda: now)
        assert process.read_record(spec.record) == record
        assert process.is_alive(record)
        assert 0 <= record.uptime_s < 60
        assert process.stop(spec.record)
    assert not process.is_alive(record)


def test_process_of_another_boot_is_not_taken_for_ours(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "/bin/sleep", "600")
    record = process.start(spec)
    assert not process.is_alive(dataclasses.replace(record, boot="another"))
    process.stop(spec.record)


def test_record_of_an_earlier_build_is_understood(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "/bin/sleep", "600")
    record = process.start(spec)
    old = {"pid": record.pid, "create_time": record.create_time, "command": ["/bin/sleep", "600"], "log": record.log}
    write_json(spec.record, {**old, "create_time": record.create_time - 2})
    stale = process.read_record(spec.record)
    assert stale is not None and not process.is_alive(stale)
    write_json(spec.record, old)
    found = process.read_record(spec.record)
    assert found is not None and process.is_alive(found)
    assert process.stop(spec.record)


def test_moved_record_is_still_that_of_its_process_and_children(tmp_path: Path, leftovers: Leftovers) -> None:
    (tmp_path / "home").mkdir()
    _, record, child = start_python(tmp_path / "home", PARENT, "own session")
    assert {record.pid, int(child)} == set(leftovers())
    (tmp_path / "home").rename(tmp_path / "moved")
    moved = process.read_record(tmp_path / "moved" / "test.json")
    assert moved is not None and process.is_alive(moved)
    assert process.stop(tmp_path / "moved" / "test.json")
    assert [] == leftovers()


def test_record_reached_by_another_path_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    spec = spec_of(tmp_path / "home", "/bin/sleep", "600")
    record = process.start(spec)
    # As with another mount of the folder, resolving the path does not give that of the start.
    other = tmp_path / "test.json"
    os.link(spec.record, other)
    found = process.read_record(other)
    assert found is not None and process.is_alive(found)
    assert process.stop(other)
    assert not psutil.pid_exists(record.pid)


def test_copied_record_speaks_of_nothing_and_ends_nothing(tmp_path: Path) -> None:
    spec = spec_of(tmp_path / "home", "/bin/sleep", "600")
    record = process.start(spec)
    copy = tmp_path / "copy" / "test.json"
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    copied = process.read_record(copy)
    assert copied is not None and not process.is_alive(copied)
    for refused in (lambda: process.stop(copy), lambda: process.start(dataclasses.replace(spec, record=copy))):
        with pytest.raises(CopiedHome, match=f"record=`{copy}` original=`{spec.record}` hint: run `rollforward down`"):
            refused()
    assert copy.exists() and process.is_alive(record)
    assert process.stop(spec.record)
    assert not process.stop(copy)
    assert not copy.exists()


@pytest.mark.parametrize("content", [None, "", '{"pid": 1', '{"pid": "x", "create_time": 0, "command": [], "log": ""}'])
def test_process_without_a_readable_record_is_found_by_its_mark(
    tmp_path: Path, leftovers: Leftovers, content: str | None
) -> None:
    spec = spec_of(tmp_path, "/bin/sleep", "600")
    record = process.start(spec)
    spec.record.unlink() if content is None else spec.record.write_text(content)
    assert process.read_record(spec.record) is None
    assert process.stop(spec.record)
    assert not process.is_alive(record)
    assert [] == leftovers()


def test_second_start_replaces_the_first(tmp_path: Path, leftovers: Leftovers) -> None:
    spec = spec_of(tmp_path, "/bin/sleep", "600")
    first = process.start(spec)
    second = process.start(spec)
    assert not process.is_alive(first)
    assert [second.pid] == leftovers()
    process.stop(spec.record)


def test_process_that_ends_while_starting_shows_its_last_lines(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "/bin/sh", "-c", "echo first; echo the reason >&2; exit 1")
    with pytest.raises(StartFailed, match=r"test ended while starting:\n  first\n  the reason\n"):
        process.await_ready(spec, process.start(spec), lambda: False, timeout_s=60)


def test_process_that_never_answers_is_given_up(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "/bin/sleep", "600")
    with pytest.raises(StartFailed, match="did not answer in time"):
        process.await_ready(spec, process.start(spec), lambda: False, timeout_s=0.1)
    process.stop(spec.record)


def test_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(InfraError, match="program=`no-such-program`"):
        process.start(spec_of(tmp_path, "no-such-program"))


def test_long_log_is_set_aside(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "/bin/sh", "-c", "echo new")
    spec.log.parent.mkdir()
    with spec.log.open("wb") as file:
        file.truncate(process.LOG_BYTES_MAX + 1)
    record = process.start(spec)
    with pytest.raises(StartFailed, match="new"):
        process.await_ready(spec, record, lambda: False, timeout_s=60)
    assert "new\n" == spec.log.read_text()
    assert process.LOG_BYTES_MAX + 1 == spec.log.with_name("test.log.1").stat().st_size
