"""Errors, sorted by what has to happen next.

A message is lowercase, ends with key=`value` pairs and, where one exists, a hint that names the next step. Code that
catches one of these decides by its class alone; the fields are for people and logs.
"""

from __future__ import annotations

# Of a process that ends because of `Fenced`.
EXIT_FENCED = 3


class RollforwardError(Exception):
    """Root of every error this project raises on purpose.

    `hint` is the next step for a person. `fields` are appended to the message as key=`value` pairs in the given order.
    """

    def __init__(self, message: str, *, hint: str = "", **fields: object) -> None:
        self.message = message
        self.hint = hint
        self.fields = fields
        super().__init__(self._text())

    def _text(self) -> str:
        pairs = " ".join(f"{name}=`{value}`" for name, value in self.fields.items())
        text = f"{self.message} {pairs}".strip()
        return f"{text}; hint: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.fields))


def _rebuild(kind: type[RollforwardError], message: str, hint: str, fields: dict[str, object]) -> RollforwardError:
    return kind(message, hint=hint, **fields)


class Fenced(RollforwardError):
    """Another owner with a newer epoch lives: drop uncommitted work and stop. A process ends with `EXIT_FENCED` then."""


class TaskCorrupted(RollforwardError):
    """The task's local store cannot be trusted: wipe it and recover."""


class Unavailable(RollforwardError):
    """Something outside does not answer, or the work must be done again: retry with backoff, bounded."""


class InvalidInput(RollforwardError):
    """A record or statement is wrong: dead-letter topic, or tell the person who wrote it."""


class InvalidConfig(RollforwardError):
    """The configuration or the environment is wrong: fix it and restart."""


class FormatUnsupported(RollforwardError):
    """Data was written by a version that this program does not read: stop."""


class DataCorrupted(RollforwardError):
    """Data that should be right is not, and there is no other copy to take: stop, page someone."""


class Unrecoverable(RollforwardError):
    """No correct way to the last committed version exists: stop, page someone. Never answered by starting empty."""


class InvariantBroken(RollforwardError):
    """The program contradicts itself: stop and report."""


class InvalidStateStore(RollforwardError):
    """A store was used before `init` or after `close` (Kafka Streams' InvalidStateStoreException)."""


def text_of(error: BaseException) -> str:
    """What an error says. One of py4j's asks the JVM for it, which may have ended: then what it was made of."""
    try:
        return str(error)
    except Exception:
        return repr(error)
