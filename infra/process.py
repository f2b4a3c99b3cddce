"""Detached processes that outlive the command that started them, and are found and ended by a later one.

Owns start, identity, liveness and stop. A process leads its own session, reads /dev/null, writes stdout and stderr to
one log, and has the default signal dispositions whatever the starter ignored (a shell's `&` sets SIGINT to ignore, and
Dagster copies that to SIGTERM).

Two independent traces identify it. The record, a JSON file written atomically after the start:

    {"pid": 4711, "boot": "5b1c…", "since_boot_s": 190.02, "create_time": 1795274190.02, "command": ["java", ...],
     "log": "/.../broker.log"}

and the variable ROLLFORWARD_PROCESS in its environment, inherited by its children, which holds the record's path. A
record speaks of a live process only if pid *and* beginning agree, so neither a stale file nor a reused pid is mistaken
for it. The beginning is counted from the machine's boot, and told with the boot's id: times of day move when the clock
is set. Records of earlier builds have `create_time` alone.

`stop` ends what the record names, its process group, and everything that carries the mark: so nothing is left when the
leader was killed alone, when the starter died before it wrote the record, or when the record cannot be read. A child
that was itself started by this module carries its own mark and is not touched.

A mark that names another path tells what became of the record's folder. If nothing is at that path, or the very same
file, the folder was moved or is reached in another way, and the process is still the record's. If another file is
there, this record is a copy of it: the process is not this record's, and `stop` refuses instead of ending it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from infra.errors import CopiedHome, InfraError, StartFailed, StopFailed, log_tail
from infra.files import read_json, write_json

MARK = "ROLLFORWARD_PROCESS"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# The boot time, which psutil adds to creation times, is known to the second; a pid is not reused that fast.
START_TOLERANCE_S = 1.5
POLL_S = 0.02
KILL_WAIT_S = 10.0
LOG_BYTES_MAX = 16 * 1024 * 1024
DEFAULT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD)


@dataclass(frozen=True)
class ProcessSpec:
    """What to start: `env` is the whole environment; `record` is where the process is remembered."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    record: Path


@dataclass(frozen=True)
class ProcessRecord:
    """A process that was started; `create_time` is in seconds since the epoch, as the clock was at the start.

    `boot` is the id of the machine's boot and `since_boot_s` the beginning in seconds since then; without an id, as in
    records of earlier builds, `create_time` tells the beginning. `path` is where the record was read, and is not in it.
    """

    pid: int
    create_time: float
    command: tuple[str, ...]
    log: str
    boot: str = ""
    since_boot_s: float = 0.0
    path: str = ""

    @property
    def uptime_s(self) -> float:
        """Seconds since the start."""
        began = psutil.boot_time() + self.since_boot_s if self.boot else self.create_time
        return max(0.0, time.time() - began)


def start(spec: ProcessSpec) -> ProcessRecord:
    """Starts the process and records it; what an earlier start under the same record left behind is ended first.

    Raises InfraError if the program is not there. Returns at once: see `await_ready`.
    """
    if shutil.which(spec.command[0], path=spec.env.get("PATH", os.defpath)) is None:
        raise InfraError(
            f"{spec.name} cannot start: no such program",
            program=spec.command[0],
            hint="install the project's dependencies again",
        )
    stop(spec.record)
    for folder in (spec.cwd, spec.log.parent, spec.record.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _rotate(spec.log)
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # The shell only changes the folder: exec keeps the pid.
    words = ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', spec.name, str(spec.cwd), *spec.command]
    pid = os.posix_spawn(
        words[0],
        words,
        {**spec.env, MARK: str(spec.record.resolve())},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(spec.log), log_flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable_fds()),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=DEFAULT_SIGNALS,
    )
    # Not yet reaped by anyone, so it is there even if it has ended already.
    created = psutil.Process(pid).create_time()
    began = _boot(), round(created - psutil.boot_time(), 2)
    record = ProcessRecord(pid, created, spec.command, str(spec.log), *began, str(spec.record))
    write_json(spec.record, {name: value for name, value in asdict(record).items() if name != "path"})
    return record


def read_record(path: Path) -> ProcessRecord | None:
    """What was recorded; None when the file is missing or cannot be understood."""
    content = read_json(path)
    if not content:
        return None
    try:
        return ProcessRecord(
            int(content["pid"]),
            float(content["create_time"]),
            tuple(map(str, content["command"])),
            str(content["log"]),
            str(content.get("boot", "")),
            float(content.get("since_boot_s", 0.0)),
            str(path),
        )
    except (KeyError, TypeError, ValueError):
        return None


def is_alive(record: ProcessRecord) -> bool:
    """Whether the recorded process runs: same pid, same beginning, not a zombie, and not that of a record this one copies."""
    leader = _leader(record)
    return leader is not None and not _is_copied(record.path, leader)


def require_own(path: Path) -> None:
    """Raises `CopiedHome` if the record speaks of a living process that is the one of another record."""
    record = read_record(path)
    leader = None if record is None else _leader(record)
    if leader is not None and _is_copied(path, leader):
        raise CopiedHome(
            "process was started for another home, of which this one is a copy",
            pid=leader.pid,
            record=path,
            original=_mark(leader),
            hint="run `rollforward down` with the original as the home; the copy can be used when nothing of it runs",
        )


def await_ready(spec: ProcessSpec, record: ProcessRecord, probe: Callable[[], bool], *, timeout_s: float) -> None:
    """Returns when the probe answers true; raises StartFailed with the log's last lines when the process ends or time is up."""
    began = time.monotonic()
    while not probe():
        waited = time.monotonic() - began
        alive = is_alive(record)
        if alive and waited < timeout_s:
            time.sleep(POLL_S)
            continue
        raise StartFailed(
            f"{spec.name} {'did not answer in time' if alive else 'ended while starting'}:{log_tail(spec.log)}",
            pid=record.pid,
            waited_s=round(waited, 1),
            log=spec.log,
            hint="read the log, then run the same again",
        )


def start_and_await(
    spec: ProcessSpec, probe: Callable[[], bool], *, timeout_s: float, grace_s: float = 10.0
) -> ProcessRecord:
    """`start` and `await_ready`: a process that does not get ready is ended, with up to `grace_s` for its own end."""
    record = start(spec)
    try:
        await_ready(spec, record, probe, timeout_s=timeout_s)
    except BaseException:
        stop(spec.record, grace_s=grace_s)
        raise
    return record


def stop(path: Path, *, grace_s: float = 10.0) -> bool:
    """Ends the process behind a record and all it started: SIGTERM, up to `grace_s`, SIGKILL. Tells whether anything was running.

    The record is deleted. Raises StopFailed if something survives SIGKILL, and `CopiedHome`, with nothing done, for
    another record's process.
    """
    require_own(path)
    record = read_record(path)
    marks = _marks(path, record)
    victims = _victims(marks, record)
    if victims:
        _terminate(record, victims)
        _await_gone(victims, grace_s)
        deadline = time.monotonic() + KILL_WAIT_S
        # Asked again, as one of them may have started another meanwhile.
        while left := _victims(marks, record) | {victim for victim in victims if _runs(victim)}:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            _await_gone(left, 1.0)
            if time.monotonic() > deadline:
                pids = ",".join(str(process.pid) for process in left)
                raise StopFailed(
                    "processes survive being killed",
                    pids=pids,
                    record=path,
                    hint="look at them with ps; end them as their owner",
                )
    path.unlink(missing_ok=True)
    return bool(victims)


def _leader(record: ProcessRecord) -> psutil.Process | None:
    try:
        process = psutil.Process(record.pid)
        return process if _is_same(process, record) and _runs(process) else None
    except psutil.Error:
        return None


def _is_same(process: psutil.Process, record: ProcessRecord) -> bool:
    if not record.boot:
        return bool(abs(process.create_time() - record.create_time) <= START_TOLERANCE_S)
    since_boot_s = process.create_time() - psutil.boot_time()
    return record.boot == _boot() and bool(abs(since_boot_s - record.since_boot_s) <= START_TOLERANCE_S)


def _boot() -> str:
    """The id of the machine's boot; empty on a system without one, where creation times do not move."""
    try:
        return BOOT_ID.read_text().strip()
    except (OSError, ValueError):
        return ""


def _is_copied(path: Path | str, leader: psutil.Process) -> bool:
    """Whether the leader was started under a record that is still there and is another file than this."""
    mark = _mark(leader)
    try:
        return mark is not None and not os.path.samefile(mark, path)
    except OSError:
        # One of the two is gone: moved, or deleted by hand.
        return False


def _marks(path: Path, record: ProcessRecord | None) -> set[str]:
    """What the processes of this record may carry: its path, and that of the start if it was moved since."""
    leader = _leader(record) if record else None
    return {str(path.resolve()), *filter(None, [_mark(leader) if leader else None])}


def _runs(process: psutil.Process) -> bool:
    """Whether a process still does something; reaps it when it is a dead child of ours."""
    try:
        if not process.is_running():
            return False
        if process.status() != psutil.STATUS_ZOMBIE:
            return True
    except psutil.NoSuchProcess:
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    return False


def _victims(marks: Set[str], record: ProcessRecord | None) -> set[psutil.Process]:
    found = set()
    leader = _leader(record) if record else None
    if leader is not None:
        found.add(leader)
        with contextlib.suppress(psutil.Error):
            found.update(leader.children(recursive=True))
    found.update(process for process in psutil.process_iter() if _mark(process) in marks)
    # A child started by this module has a mark, and an owner, of its own; so has whoever calls this.
    ours = {None, *marks}
    return {process for process in found if process.pid != os.getpid() and _runs(process) and _mark(process) in ours}


def _mark(process: psutil.Process) -> str | None:
    try:
        mark: str | None = process.environ().get(MARK)
        return mark
    except (psutil.Error, OSError):
        return None


def _terminate(record: ProcessRecord | None, victims: Iterable[psutil.Process]) -> None:
    """One SIGTERM for each: by group where the leader lives, since it may start another child at this moment."""
    leader = _leader(record) if record else None
    signalled = None
    if leader is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader.pid, signal.SIGTERM)
            signalled = leader.pid
    for process in victims:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) != signalled:
                process.terminate()


def _await_gone(processes: Iterable[psutil.Process], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    # Every one is asked each time, since asking reaps.
    while [process for process in processes if _runs(process)] and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _inheritable_fds() -> list[int]:
    """Open files that a child would inherit beside the standard ones: a pipe among them would never end for who waits on it."""
    found = []
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError, ValueError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def _rotate(log: Path) -> None:
    """Keeps one older log, so that a stack that is started daily does not fill the disk."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LOG_BYTES_MAX:
            log.replace(log.with_name(log.name + ".1"))
