"""The Java programs of tests and benchmarks: applications of Kafka Streams, built by Maven from the project beside this
module.

Owns `<cache>/peers-<digest of pom and sources>`: `peers.jar` with the classes, `lib/` with what they need. A folder of that
name is complete, since it is renamed into place when Maven is done; several processes may ask at once. What Maven fetches
is kept in `<cache>/maven` and checked against the repository's checksums; Maven itself is one of the pinned sets of jars.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from infra import jars
from infra.errors import InfraError, log_tail
from infra.files import FileLock
from infra.java import NETWORK_HINT, JavaHome, find_java

PROJECT = Path(__file__).parent
SOURCES = Path("src", "main", "java")
BUILD_TIMEOUT_S = 900
# Options of the JVM for a program that lives for seconds.
SHORT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


def command(name: str, *options: str, cache: Path, project: Path = PROJECT) -> list[str]:
    """How a program is run, with these options of the JVM and before its own arguments.

    `name` is a class of the project's `src/main/java`. Builds all programs first unless these sources are built. Raises
    `InfraError` with the end of Maven's log.
    """
    if not (project / SOURCES / f"{name}.java").is_file():
        raise InfraError("no such program", program=name, hint=f"name one of {SOURCES}")
    java = find_java(cache)
    folder = _built(java, cache, project)
    return [str(java.java), *options, "-cp", f"{folder / 'peers.jar'}{os.pathsep}{folder / 'lib' / '*'}", name]


def kafka_version() -> str:
    """The version of Kafka Streams."""
    found = ElementTree.parse(PROJECT / "pom.xml").findtext(".//{*}kafka.version")
    assert found is not None
    return found


def _built(java: JavaHome, cache: Path, project: Path) -> Path:
    sources = (project / "pom.xml", *sorted((project / SOURCES).glob("*.java")))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = cache / f"peers-{digest}"
    if folder.exists():
        return folder
    maven = os.pathsep.join(map(str, jars.resolve("maven", java, cache=cache)))
    with FileLock(cache / "peers.lock", timeout_s=2 * BUILD_TIMEOUT_S), tempfile.TemporaryDirectory(dir=cache) as work:
        # Another process may have made it while this one waited.
        if not folder.exists():
            _build(java, maven, project, Path(work), cache / "maven")
            (Path(work) / "target").rename(folder)
    return folder


def _build(java: JavaHome, maven: str, project: Path, work: Path, repository: Path) -> None:
    log = work / "maven.log"
    arguments = [
        *("-cp", maven, f"-Dmaven.multiModuleProjectDirectory={project}", "org.apache.maven.cli.MavenCli"),
        # No questions, wrong checksums are errors, errors alone are told.
        *("--batch-mode", "--strict-checksums", "--quiet", "--file", str(project / "pom.xml")),
        *(f"-Dmaven.repo.local={repository}", f"-Dinto={work / 'target'}", "package"),
    ]
    code = java.run(arguments, log=log, timeout_s=BUILD_TIMEOUT_S)
    if code != 0:
        raise InfraError(f"the Java programs were not built:{log_tail(log)}", code=code, hint=NETWORK_HINT)
