"""The jars of the local stack: which ones, and where they lie on this machine.

Owns the four sets (`kafka`: a broker; `s3proxy`: an S3 server; `maven`: it builds the Java programs of tests and
benchmarks; `connector`: what PySpark needs to read and write Kafka, for a peer in the benchmarks), the lock file
`jars.lock.json` beside this module, which pins every jar by version and SHA-256, and the cache:

    <cache>/jars/<set>-<digest of the set's lock entry>/<name>-<version>.jar ...   manifest.json

Invariants: a folder of that name is complete, since it is renamed into place when every jar in it has the pinned
digest; every call checks all digests again (44 MB: some 50 ms, no JVM), keeps the good jars and fetches only the
missing or changed ones. A download with another content is refused. One file lock per set covers the making, so several
processes may resolve at once. Survives kill at any moment: what is left is a temporary folder, deleted by the next
making.

`python -m infra.jars` lets Ivy choose anew from the definitions below and writes the lock file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from infra import ivy
from infra.errors import InfraError, JarsDamaged
from infra.files import FileLock, write_json
from infra.ivy import Coordinate, Request
from infra.java import JavaHome, find_java

Progress = Callable[[str, str], None]
LOCK_FILE = Path(__file__).with_name("jars.lock.json")

DEFINITIONS = {
    "kafka": Request(
        # slf4j 1.7 comes without a backend, and a broker that cannot log hides why it died.
        roots=(
            Coordinate.parse("org.apache.kafka:kafka_2.13:4.3.1"),
            Coordinate.parse("org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"),
        ),
        exact=False,
    ),
    # Builds the Java programs of tests and benchmarks (tests/java); nothing else runs it. Its distribution is an archive,
    # which Ivy does not unpack, so these are the parts of it that are used.
    "maven": Request(
        roots=tuple(
            Coordinate.parse(text)
            for text in (
                "org.apache.maven:maven-embedder:3.9.16",
                "org.apache.maven:maven-compat:3.9.16",
                "org.apache.maven:maven-slf4j-provider:3.9.16",
                "org.apache.maven.resolver:maven-resolver-connector-basic:1.9.27",
                "org.apache.maven.resolver:maven-resolver-transport-http:1.9.27",
                "org.fusesource.jansi:jansi:2.4.2",
            )
        ),
        exact=False,
    ),
    # The peer `spark` alone reads and writes Kafka with it.
    "connector": Request(
        roots=(Coordinate.parse("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"),),
        exact=False,
        # The newest that can be had; reading and writing with this pair works.
        overrides=(Coordinate.parse("org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0"),),
        # PySpark ships these itself; a second version on the driver's class path would decide by chance.
        exclude_orgs=(
            *("org.scala-lang", "org.scala-lang.modules", "org.slf4j", "org.apache.hadoop", "org.lz4", "at.yawk.lz4"),
            *("org.xerial.snappy", "com.github.luben", "com.google.code.findbugs"),
        ),
        exclude_names=("org.apache.spark:spark-tags_2.13",),
    ),
    # All that it loads when it serves a folder: 20 jars, where its descriptors name 152. jackson-annotations is newer
    # than the one they name, with which it does not start.
    "s3proxy": Request(
        roots=tuple(
            Coordinate.parse(text)
            for text in (
                "org.gaul:s3proxy:4.1.0",
                "args4j:args4j:2.37",
                "com.google.guava:guava:33.7.1-jre",
                "jakarta.servlet:jakarta.servlet-api:6.0.0",
                "ch.qos.logback:logback-classic:1.6.3",
                "ch.qos.logback:logback-core:1.6.3",
                "org.slf4j:slf4j-api:2.0.18",
                "com.fasterxml.jackson.core:jackson-annotations:2.22",
                "tools.jackson.core:jackson-core:3.2.2",
                "tools.jackson.core:jackson-databind:3.2.2",
                "tools.jackson.dataformat:jackson-dataformat-xml:3.2.2",
                "org.codehaus.woodstox:stax2-api:4.3.0",
                "com.fasterxml.woodstox:woodstox-core:7.2.1",
                *(
                    f"software.amazon.awssdk:{name}:2.54.2"
                    for name in (
                        *("s3", "sdk-core", "aws-core", "utils", "http-client-spi", "checksums", "checksums-spi"),
                    )
                ),
            )
        ),
        exact=True,
    ),
}


@dataclass(frozen=True, order=True)
class Jar:
    """One pinned jar."""

    file: str
    coordinate: str
    sha256: str


def default_cache() -> Path:
    """Where this user's downloads lie: `$XDG_CACHE_HOME/rollforward`, by default `~/.cache/rollforward`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollforward"


def resolve(
    name: str,
    java: JavaHome,
    progress: Progress | None = None,
    *,
    cache: Path | None = None,
    lock_file: Path = LOCK_FILE,
) -> list[Path]:
    """The paths of a set's jars, each with the pinned content, in the order of their names.

    `name` is one of the sets. Raises JarsUnavailable (network), JarsDamaged (a download differs from the lock file) or
    InfraError (unknown set).
    """
    pinned = read_lock(name, lock_file)
    folder = folder_of(name, pinned, cache or default_cache())
    if not _bad(folder, pinned):
        return [folder / jar.file for jar in pinned]
    with FileLock(folder.parent / f"{name}.lock", timeout_s=ivy.FETCH_TIMEOUT_S):
        # Another process may have made it while this one waited.
        if _bad(folder, pinned):
            _make(folder, name, pinned, java, progress or (lambda step, detail: None))
    return [folder / jar.file for jar in pinned]


def read_lock(name: str, lock_file: Path = LOCK_FILE) -> list[Jar]:
    """The pinned jars of a set."""
    content = json.loads(lock_file.read_text(encoding="utf-8"))
    if name not in content:
        raise InfraError(
            "no such set of jars", set=name, known=", ".join(sorted(content)), hint="name one of the known sets"
        )
    return sorted(Jar(**entry) for entry in content[name])


def folder_of(name: str, pinned: list[Jar], cache: Path) -> Path:
    """The folder of a set in the cache; another list of jars has another folder."""
    text = json.dumps([asdict(jar) for jar in pinned], sort_keys=True)
    return cache / "jars" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def write_lock(java: JavaHome, lock_file: Path = LOCK_FILE) -> None:
    """Lets Ivy choose the jars of every set from the definitions and pins what it chose."""
    content = {}
    for name, definition in DEFINITIONS.items():
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            chosen = ivy.fetch(definition, into=Path(first), work=Path(first), java=java)
            # As `resolve` does: where a descriptor asks for a variant of a jar (a classifier), that has another content.
            request = Request(tuple(sorted(chosen)), exact=True)
            files = ivy.fetch(request, into=Path(second), work=Path(second), java=java)
            content[name] = [asdict(Jar(_file_name(c), str(c), _sha256(path))) for c, path in sorted(files.items())]
    write_json(lock_file, content)


def _file_name(coordinate: Coordinate) -> str:
    return f"{coordinate.name}-{coordinate.rev}.jar"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bad(folder: Path, pinned: list[Jar]) -> list[Jar]:
    """The jars of a set that are missing from a folder or have another content there."""
    return [jar for jar in pinned if not (folder / jar.file).is_file() or _sha256(folder / jar.file) != jar.sha256]


def _make(folder: Path, name: str, pinned: list[Jar], java: JavaHome, progress: Progress) -> None:
    for left in folder.parent.glob(f".{name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    try:
        new, fetched = work / "set", work / "fetched"
        new.mkdir()
        fetched.mkdir()
        bad = _bad(folder, pinned)
        for jar in set(pinned) - set(bad):
            shutil.copy2(folder / jar.file, new / jar.file)
        progress("jars", f"fetching {len(bad)} of {len(pinned)} jars of {name}")
        wanted = tuple(Coordinate.parse(jar.coordinate) for jar in bad)
        files = ivy.fetch(Request(wanted, exact=True), into=fetched, work=work, java=java)
        for jar in bad:
            files[Coordinate.parse(jar.coordinate)].rename(new / jar.file)
        _refuse_other_content(new, pinned)
        write_json(new / "manifest.json", {"set": name, "jars": [asdict(jar) for jar in pinned]})
        if folder.exists():
            # Renamed away, not deleted: a running broker keeps the files it has open.
            folder.rename(work / "old")
        new.rename(folder)
        progress("jars", f"{name} is complete: {len(pinned)} jars")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _refuse_other_content(folder: Path, pinned: list[Jar]) -> None:
    for jar in _bad(folder, pinned):
        raise JarsDamaged(
            "a fetched jar is not the pinned one",
            jar=jar.coordinate,
            expected=jar.sha256,
            found=_sha256(folder / jar.file),
            hint="try again; if it stays, something between you and the repository changes files: do not use them",
        )


if __name__ == "__main__":
    write_lock(find_java(default_cache()))
