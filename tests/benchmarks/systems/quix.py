"""Quix Streams, exactly-once, in a virtualenv of its own: its client is older than ours."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.systems.base import NotPossible, System

FOLDER = Path(__file__).parents[1] / "peers"
LOCK = FOLDER / "quix.lock"
# The names that the program gives to its groupings of flights.
GROUPINGS = ("carriers", "routes")


class QuixStreams(System):
    """One process with one thread, as it is; it has no second one."""

    name = "quix-streams"
    most = 300_000

    @classmethod
    def version(cls) -> str:
        found = re.search(r"^quixstreams==(\S+)", LOCK.read_text(), re.MULTILINE)
        assert found
        return found[1]

    def prepare(self) -> None:
        self._python = virtualenv(self.broker.cache)
        self.create_outputs()

    def start(self) -> None:
        arguments = [self.workload.peer, self.broker.bootstrap, self.run, self.topic, str(self.folder / "state")]
        self.spawn([str(self._python), str(FOLDER / "quix_app.py"), *arguments])

    def inner_topics(self) -> list[str]:
        names = GROUPINGS if self.workload.peer == "flights" else ()
        return [f"repartition__{self.run}--{self.topic}--{name}" for name in names]


def virtualenv(cache: Path) -> Path:
    """The interpreter of a virtualenv with exactly the pinned packages; made once for each lock file."""
    digest = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache / f"quix-{digest}"
    done = folder / ".complete"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        command = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        try:
            subprocess.run([*command, "-r", str(LOCK)], check=True)
        except subprocess.CalledProcessError as error:
            raise NotPossible("its packages could not be installed: check the network") from error
        done.touch()
    return folder / "bin" / "python"
