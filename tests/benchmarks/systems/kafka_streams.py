"""Kafka Streams, `exactly_once_v2`: one Java program for all workloads, compiled by the benchmark."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from infra import jars
from infra.java import find_java
from tests.benchmarks.systems.base import NotPossible, System

SOURCE = Path(__file__).parents[1] / "peers" / "KafkaStreamsPeer.java"
HEAP = "1g"
# The names that the program gives to its groupings of flights.
GROUPINGS = ("carriers", "routes")


class KafkaStreams(System):
    """Two threads, static membership; its JVM has the same heap as ours."""

    name = "kafka-streams"

    @classmethod
    def version(cls) -> str:
        pinned = {jar.coordinate.split(":")[1]: jar.coordinate.split(":")[2] for jar in jars.read_lock("streams")}
        return pinned["kafka-streams"]

    def prepare(self) -> None:
        java = find_java(self.broker.cache)
        self._class_path = os.pathsep.join(map(str, jars.resolve("streams", java, cache=self.broker.cache)))
        self._program = compiled(java.home, self._class_path, self.broker.cache)
        self._java = str(java.java)
        self.create_outputs()

    def start(self) -> None:
        arguments = [self.workload.peer, self.broker.bootstrap, self.run, self.topic, str(self.folder / "state")]
        class_path, program = self._program
        self.spawn(
            [self._java, f"-Xmx{HEAP}", "-cp", f"{class_path}{os.pathsep}{self._class_path}", program, *arguments]
        )

    def inner_topics(self) -> list[str]:
        return [f"{self.run}-{name}-repartition" for name in GROUPINGS] if self.workload.peer == "flights" else []


def compiled(java_home: Path, class_path: str, cache: Path, source: Path = SOURCE) -> tuple[str, str]:
    """A class path and the program on it: classes that `javac` made, or the source, which `java` compiles at each start.

    Raises `NotPossible` where the machine has no compiler at all.
    """
    javac = next((str(p) for p in (java_home / "bin" / "javac",) if p.exists()), None) or shutil.which("javac")
    if javac is None:
        modules = subprocess.run([java_home / "bin" / "java", "--list-modules"], capture_output=True, text=True)
        if "jdk.compiler" not in modules.stdout:
            raise NotPossible("no Java compiler here: install a JDK")
        return "", str(source)
    digest = hashlib.sha256(source.read_bytes() + class_path.encode()).hexdigest()[:12]
    folder = cache / f"peer-{digest}"
    if not folder.exists():
        work = folder.with_name(f"{folder.name}.{os.getpid()}")
        subprocess.run([javac, "-d", work, "-cp", class_path, source], check=True)
        try:
            work.rename(folder)
        except OSError:
            # Another process has made the same.
            shutil.rmtree(work)
    return str(folder), source.stem
