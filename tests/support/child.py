"""A program over an `Input` as a process of its own, which may be killed at a failpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.counting import Input


def run_program(module: str, given: Input, folder: Path, points: Path) -> tuple[int, dict[str, Any]]:
    """Run the module until its input ends or it is killed; gives exit status and what its stores hold at the end."""
    done = subprocess.run(
        [sys.executable, "-m", module, given.bootstrap, given.application, str(folder)],
        env={**os.environ, "ROLLFORWARD_FAILPOINTS": str(points), "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        check=False,
        timeout=120,
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
