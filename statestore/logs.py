"""Where the lines of the structured log go: to the stderr of the moment, since stdout is for answers and for the wire."""

import sys
from contextlib import suppress
from typing import Any, TextIO

import structlog


def to_stderr(*lines: Any) -> None:
    """Every line of this process goes to stderr, rendered by the `lines` in turn, with its level and an ISO time in UTC.

    The stream is looked up when a logger is made, not now: a program that calls the command line within itself gives it
    a stderr that is closed afterwards, and whoever logs next must not write there.
    """
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso"), *lines],
        logger_factory=_stderr_logger,
    )


def json_to_stderr() -> None:
    """As `to_stderr`, one JSON object a line; a traceback is a text of it, without local variables, which may be secrets."""
    to_stderr(structlog.processors.format_exc_info, structlog.processors.JSONRenderer())


def _stderr_logger(*_: object) -> structlog.PrintLogger:
    return structlog.PrintLogger(_Lossy(sys.stderr))  # type: ignore[arg-type]


class _Lossy:
    """A stream that loses what cannot be written, as to a full disk: no commit and no watching thread ends of its log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    # The lock that keeps lines apart is the stream's, whatever it is wrapped in.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Lossy) and other._stream is self._stream

    def __hash__(self) -> int:
        return hash(self._stream)

    def write(self, text: str) -> int:
        """Gives the characters of `text`, whatever became of them."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As far as it goes."""
        with suppress(OSError):
            self._stream.flush()
