"""Programs of the operating system that the stack may use and does not need: Prometheus and Alertmanager.

Looked for on PATH, then in `<cache>/tools/<name>`. `fetch` brings them there on a Debian or Ubuntu machine as any user:
apt downloads the packages with the sources that the machine is configured with and checks their signatures, and they
are unpacked, not installed. Nothing of the system changes. A folder of the cache is complete, since it is renamed into
place; a kill leaves a temporary folder that the next fetch deletes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from infra.errors import InfraError
from infra.files import FileLock
from infra.jars import default_cache

PROMETHEUS, ALERTMANAGER, PROMTOOL = "prometheus", "prometheus-alertmanager", "promtool"
# The packages and the programs that each brings.
PACKAGES = {PROMETHEUS: (PROMETHEUS, PROMTOOL), ALERTMANAGER: (ALERTMANAGER, "amtool")}
HINT = "`rollforward up --fetch-monitoring` fetches them for you alone, `apt-get install prometheus prometheus-alertmanager` for all"
FETCH_TIMEOUT_S = 300.0

# Of one length, since the program knows where in itself its texts lie. The second is relative to its working folder.
TEMPLATES_BUILT_IN = b"/usr/share/prometheus/alertmanager"
TEMPLATES_HERE = b"./" * 11 + b"alertmanager"
assert len(TEMPLATES_BUILT_IN) == len(TEMPLATES_HERE)

Progress = Callable[[str, str], None]


class ToolMissing(InfraError):
    """A program is not on this machine: install it, or go on without."""


def find(name: str, cache: Path) -> Path | None:
    """The program's path; None where it is not."""
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)
    fetched = next(
        (_folder(cache, package) / "usr/bin" / name for package, made in PACKAGES.items() if name in made), None
    )
    return fetched if fetched is not None and os.access(fetched, os.X_OK) else None


def require(name: str, cache: Path) -> Path:
    """The program's path. Raises ToolMissing with how to get it."""
    found = find(name, cache)
    if found is None:
        raise ToolMissing("program is not installed", program=name, hint=HINT)
    return found


def fetch(cache: Path, progress: Progress = lambda _step, _detail: None) -> None:
    """Put both packages into the cache, unless they are there or on PATH. Raises ToolMissing where apt cannot be used."""
    with FileLock(cache / "tools.lock", timeout_s=FETCH_TIMEOUT_S):
        for package, programs in PACKAGES.items():
            if not all(find(program, cache) for program in programs):
                progress("monitoring", f"fetching {package}")
                _fetch(package, cache)


def _fetch(package: str, cache: Path) -> None:
    folder = _folder(cache, package)
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{package}-*"):
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{package}-", dir=folder.parent))
    try:
        _download(package, work)
        [archive] = work.glob("*.deb")
        _run(["dpkg", "-x", str(archive), str(work / "unpacked")], work)
        _relocate(work / "unpacked" / "usr/bin" / package)
        if folder.exists():
            shutil.rmtree(folder)
        (work / "unpacked").rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _relocate(program: Path) -> None:
    """Let an unpacked Alertmanager find its templates: the path built into it is one that only root can make."""
    content = program.read_bytes()
    program.write_bytes(content.replace(TEMPLATES_BUILT_IN, TEMPLATES_HERE))


def _download(package: str, work: Path) -> None:
    """By the machine's own package lists; where they are missing or old, by lists of our own."""
    try:
        _run(["apt-get", "-qq", "download", package], work)
    except ToolMissing:
        for part in ("lists/partial", "cache/archives/partial"):
            (work / part).mkdir(parents=True)
        own = ["-o", f"Dir::State::lists={work / 'lists'}", "-o", f"Dir::Cache={work / 'cache'}"]
        _run(["apt-get", "-qq", *own, "update"], work)
        _run(["apt-get", "-qq", *own, "download", package], work)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolMissing("package cannot be fetched", command=command[0], reason=error, hint=HINT) from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ToolMissing("package cannot be fetched", command=" ".join(command[:3]), reason=reason, hint=HINT)


def templates(cache: Path) -> Path:
    """Where a fetched Alertmanager's templates lie."""
    return _folder(cache, ALERTMANAGER) / "usr/share/prometheus/alertmanager"


def _folder(cache: Path, package: str) -> Path:
    return cache / "tools" / package


if __name__ == "__main__":
    fetch(default_cache(), lambda step, detail: print(f"{step}: {detail}"))
