"""Errors of the local stack, sorted by what the reader does next.

Owns the shape of every message: lowercase, then the facts as key=`value`, then a hint that names the next step. Nothing
here survives anything; an error is raised, shown and forgotten.
"""

from __future__ import annotations

from pathlib import Path

LOG_TAIL_LINES = 20


class InfraError(Exception):
    """The local stack could not do what was asked; the message says what, with which facts, and what to do next."""

    def __init__(self, message: str, *, hint: str, **facts: object) -> None:
        self.hint = hint
        self.facts = facts
        pairs = "".join(f" {key}=`{value}`" for key, value in facts.items())
        super().__init__(f"{message}{pairs} hint: {hint}")


class JavaMissing(InfraError):
    """No Java of the needed version starts on this machine: install one."""


class JarsUnavailable(InfraError):
    """The jars of a set could not be fetched: check the network, then try again."""


class JarsDamaged(InfraError):
    """What was fetched is not what the lock file pins: do not use it."""


class PortInUse(InfraError):
    """Another process listens on the port that was asked for: stop it or choose another port."""


class StartFailed(InfraError):
    """A component ended or did not answer in time; the message carries the last lines of its log."""


class StopFailed(InfraError):
    """A process is still there after SIGKILL: it is stuck in the kernel or belongs to someone else."""


class CopiedHome(InfraError):
    """The home is a copy of one whose processes run: stop the original first."""


class StackBusy(InfraError):
    """Another command is changing the same stack and did not finish in time."""


def log_tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log, indented for an error message; a note in their place when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 16384))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"\n  (no log: {error})\n"
    return indented("\n".join(text.splitlines()[-lines:]) or "(the log is empty)")


def indented(text: str) -> str:
    """A block of foreign text inside a message, on lines of its own."""
    return "\n" + "".join(f"  {line}\n" for line in text.strip().splitlines())
