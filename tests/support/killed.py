"""Running `task_child` with a failpoint armed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from statestore.failpoints import arm
from tests.support.present import present
from tests.support.task import TaskWorld
from tests.support.task_child import do


def prepare(world: TaskWorld, steps: list[dict[str, Any]]) -> None:
    """Do the steps in this process, of which nobody is to be killed, and let go of the task."""
    for step in steps:
        do(world, step)
    world.close()


def run_child(
    world: TaskWorld, steps: list[dict[str, Any]], points: Path, *, kill_at: str = "", passes: int = 0
) -> tuple[list[Any], bool]:
    """Do the steps in another process; gives what it answered and whether it was killed at the point."""
    points.mkdir(exist_ok=True)
    if kill_at:
        arm(points, kill_at, passes=passes)
    about = {
        "kafka": world.kafka.bootstrap_servers,
        "name": world.spec.pipeline,
        "folder": str(world.spec.folder.parent),
        "config": asdict(present(world.config)),
        "retention_ms": world.spec.store.retention_ms,
    }
    text = "\n".join(json.dumps(line) for line in (about, *steps)) + "\n"
    log = points / "child.log"
    with log.open("ab") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.task_child"],
            input=text.encode(),
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "ROLLFORWARD_FAILPOINTS": str(points), "PYTHONPATH": os.getcwd()},
            timeout=120,
            check=False,
        )
    answers = [
        json.loads(line) for line in done.stdout.decode().splitlines() if line.startswith(("{", "[")) or line.isdigit()
    ]
    assert done.returncode in (0, -signal.SIGKILL), log.read_text()[-3000:]
    return answers, done.returncode == -signal.SIGKILL
