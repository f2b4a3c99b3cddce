"""Where the lines of the structured log go: to the stderr of the moment, since stdout is for answers and for the wire."""

import sys
from typing import Any

import structlog


def to_stderr(lines: Any) -> None:
    """Every line of this process goes to stderr, rendered by `lines`, with its level and an ISO time in UTC.

    The stream is looked up when a logger is made, not now: a program that calls the command line within itself gives it
    a stderr that is closed afterwards, and whoever logs next must not write there.
    """
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso"), lines],
        logger_factory=_stderr_logger,
    )


def json_to_stderr() -> None:
    """As `to_stderr`, one JSON object a line."""
    to_stderr(structlog.processors.JSONRenderer())


def _stderr_logger(*_: object) -> structlog.PrintLogger:
    return structlog.PrintLogger(sys.stderr)
