"""SIGKILL at every step of the protocol and at random moments: a statement is in the log once, or it is absent.

Whoever asks afterwards learns which; sending it again with its key puts it there exactly once; and every projection
equals a replay into an empty database.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipelines.metastore.command import decode
from pipelines.metastore.service import Metastore
from pipelines.settings import Settings
from statestore.failpoints import CHECKPOINT_POINTS, LOG_RESTORE_POINTS, METASTORE_POINTS, arm, is_armed
from tests.metastore.conftest import Open, script
from tests.support.waiting import await_

Writer = Callable[..., "subprocess.Popen[str]"]
# From here on the statement is in the log, whatever becomes of its writer.
IN_FROM = METASTORE_POINTS.index("statement.committed")


def equals_a_replay(opened: Open, metastore: Metastore, tmp_path: Path) -> bool:
    """Whether the projection equals one that is made anew from the log."""
    empty = opened(f"sqlite:///{tmp_path / f'{time.monotonic_ns()}.db'}")
    assert metastore.refresh() is None
    assert empty.restore() is None
    return metastore.projection.rows() == empty.projection.rows()


@pytest.mark.parametrize("point", METASTORE_POINTS)
def test_a_statement_killed_at_a_step_is_in_or_absent(
    opened: Open, writer: Writer, points: Path, tmp_path: Path, unique: str, point: str
) -> None:
    metastore = opened()
    metastore.execute(script(f"{unique}_0"))
    # The second statement meets the points of the projection with its own record only if nothing is left to apply, not
    # even the end of the first one's transaction: asking fences, which waits for it.
    assert metastore.outcome("key") is None
    arm(points, point)
    killed = writer("once", "deploy", unique, "key")
    assert -signal.SIGKILL == killed.wait(60), killed.communicate()
    assert not is_armed(points, point)
    found = metastore.outcome("key")
    assert (METASTORE_POINTS.index(point) >= IN_FROM) == (found is not None)
    again = writer("once", "deploy", unique, "key")
    answer = json.loads(again.communicate(timeout=60)[0])
    assert (1, found is not None) == (answer["sequence"], answer["repeated"])
    assert equals_a_replay(opened, metastore, tmp_path)
    assert ["key"] == [c.key for c in metastore.projection.commands(newest=9) if c.key == "key"]


@pytest.mark.parametrize("point", CHECKPOINT_POINTS)
def test_a_checkpoint_killed_at_a_step_loses_nothing(
    opened: Open, service: Settings, points: Path, tmp_path: Path, unique: str, point: str
) -> None:
    metastore = opened()
    metastore.execute(script(unique))
    before = metastore.projection.rows().definitions
    arm(points, point)
    assert -signal.SIGKILL == run_killed(service, points, "opened.checkpoint('c')")
    assert metastore.refresh() is None
    assert before == metastore.projection.rows().definitions
    assert equals_a_replay(opened, metastore, tmp_path)
    metastore.checkpoint("c")
    assert before == metastore.projection.rows().definitions
    assert equals_a_replay(opened, metastore, tmp_path)
    start, end = metastore.log.bounds()
    assert ["checkpoint"] == [decode(record.value).kind for record in metastore.log.read(start, end)]


@pytest.mark.parametrize("point", LOG_RESTORE_POINTS)
def test_a_restore_killed_at_a_step_is_noticed_and_run_again(
    opened: Open, service: Settings, points: Path, tmp_path: Path, unique: str, point: str
) -> None:
    metastore = opened()
    metastore.execute(script(unique))
    before = metastore.projection.rows()
    saved = tmp_path / "backup"
    metastore.backup(saved)
    arm(points, point)
    assert -signal.SIGKILL == run_killed(service, points, f"opened.restore_backup(Path({str(saved)!r}))")
    if point != "restore.committed":
        assert metastore.refresh() is not None
        assert before == metastore.projection.rows()
    metastore.restore_backup(saved)
    assert metastore.refresh() is None
    assert before == metastore.projection.rows()
    assert equals_a_replay(opened, metastore, tmp_path)


def run_killed(service: Settings, points: Path, call: str) -> int:
    """Run one call on the opened metastore in a process of its own; gives how it ended."""
    import sys

    from ops.environment import driver_environment

    program = (
        "from pathlib import Path\nfrom pipelines.metastore.embedded import metastore\n"
        f"from pipelines.settings import load_settings\nwith metastore(load_settings()) as opened:\n    {call}\n"
    )
    environment = {**driver_environment(service), "ROLLFORWARD_FAILPOINTS": str(points)}
    return subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=False).returncode


def test_a_writer_stopped_past_its_transactions_time_out_writes_nothing(
    opened: Open, writer: Writer, points: Path, tmp_path: Path, unique: str
) -> None:
    metastore = opened()
    metastore.execute(script(f"{unique}_0"))
    arm(points, "statement.validated", with_signal="SIGSTOP")
    stopped = writer("once", "deploy", unique, "slow", request_timeout_s=2.0)
    await_("the writer stops", lambda: not is_armed(points, "statement.validated"))
    await_("it is stopped", lambda: psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED)
    # Another definition of that name comes in while the writer has accepted its own and not yet written it.
    assert 1 == metastore.execute(script(unique, "SUM(price)"), "rival").sequence
    time.sleep(3)
    stopped.send_signal(signal.SIGCONT)
    answer = json.loads(stopped.communicate(timeout=60)[0])
    assert ("InvalidInput", True) == (answer["error"], "deployed with other statements" in answer["text"])
    assert metastore.outcome("slow") is None
    assert equals_a_replay(opened, metastore, tmp_path)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_two_writers_killed_at_random_moments(
    opened: Open, service: Settings, writer: Writer, tmp_path: Path, unique: str, kills: int
) -> None:
    seed = int(os.environ.get("ROLLFORWARD_SEED", "20261121"))
    print(f"seed {seed}; replay with ROLLFORWARD_SEED={seed}")
    choose = random.Random(seed)
    databases = {name: f"sqlite:///{tmp_path / f'{name}.db'}" for name in ("a", "b")}
    files = {name: tmp_path / f"{name}.txt" for name in databases}
    for file in files.values():
        # A writer that is killed early has told nothing yet.
        file.touch()

    def start(name: str, count: int) -> subprocess.Popen[str]:
        return writer("loop", str(seed), name, str(files[name]), str(count), metastore_url=databases[name])

    running = {name: start(name, 1_000_000) for name in databases}
    for _ in range(kills):
        name = choose.choice("ab")
        before = length(files[name])
        await_("an answer", lambda name=name, n=before: length(files[name]) > n or running[name].poll() is not None)  # type: ignore[misc]
        # The moment is what is random here.
        time.sleep(choose.uniform(0, 1))
        assert running[name].poll() is None, running[name].communicate()
        running[name].kill()
        running[name].wait()
        running[name] = start(name, 1_000_000)
    for process in running.values():
        process.kill()
        process.wait()
    for name in databases:
        # The statement that had no answer is sent again, and then no more.
        ended = start(name, sum(line.startswith("sent") for line in files[name].read_text().splitlines()))
        assert 0 == ended.wait(60), ended.communicate()
    metastores = [opened(url) for url in databases.values()]
    assert all(equals_a_replay(opened, metastore, tmp_path) for metastore in metastores)
    assert differences(metastores[0], [files[name].read_text().splitlines() for name in files]) == []


def length(file: Path) -> int:
    """Bytes of a file, 0 before it is there."""
    return file.stat().st_size if file.exists() else 0


def differences(metastore: Metastore, told: list[list[str]]) -> list[str]:
    """What is wrong with the log against what the writers were told and against a model of the definitions."""
    commands = [decode(record.value) for record in metastore.log.read(*metastore.log.bounds())]
    at = {command.key: command.sequence for command in commands}
    problems = [] if len(at) == len(commands) else ["a key is in the log twice"]
    for line in (line for lines in told for line in lines):
        what, key, *rest = line.split()
        if what == "in" and at.get(key) != int(rest[0]):
            problems.append(f"{key} was told {rest[0]} and is at {at.get(key)}")
        if what in ("refused", "unchanged") and key in at:
            problems.append(f"{key} was {what} and is in the log")
    states: dict[str, str] = {}
    for command in commands:
        now = states.get(command.pipeline, "absent")
        allowed = {"deploy": ["absent"], "start": ["stopped"], "stop": ["running"], "drop": ["stopped"]}
        if now not in allowed[command.kind]:
            problems.append(f"{command.key}: {command.kind} of a pipeline that is {now}")
        states[command.pipeline] = {"deploy": "stopped", "start": "running", "stop": "stopped", "drop": "absent"}[
            command.kind
        ]
    return problems if len(commands) > 3 else ["hardly anything was written"]
