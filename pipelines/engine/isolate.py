"""Finding the records that a batch fails of, so that one poisoned record does not stop a pipeline.

An expression that raises fails the whole Spark job and says nothing of the record. So the batch is tried without
WRITE, which stages nothing, on ever smaller halves of its input until the halves that fail are single records. That
costs about two jobs for each halving and record: with `most` records to give up, the cost has a bound.

Only what an expression or the decoder raises counts against a record. A server, worker or broker that is gone raises
too, and a good record must never be given up for that: every other error ends the search.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from statestore.batches import Range, Refused, count_offsets
from statestore.errors import InvalidInput, RollforwardError

log = structlog.get_logger()
_SPARK_PREFIX = "org.apache.spark.Spark"
# What Spark itself fails of; its subclasses are what expressions raise.
_NOT_DATA = {"org.apache.spark.SparkException", "org.apache.spark.SparkOutOfMemoryError"}
_JAVA = (
    "java.lang.ArithmeticException",
    "java.lang.IllegalArgumentException",
    "java.lang.NumberFormatException",
    "java.lang.IndexOutOfBoundsException",
    "java.lang.StringIndexOutOfBoundsException",
    "java.util.regex.PatternSyntaxException",
    "java.util.IllegalFormatException",
    "java.util.UnknownFormatConversionException",
    "java.time.",
)
_PYTHON_WORKER = "org.apache.spark.api.python.PythonException"
_PYTHON = ("pyarrow.lib.Arrow", "ValueError", "TypeError", "KeyError", "OverflowError", "ArithmeticError", "decimal.")
_PYTHON_MORE = ("RecursionError", "UnicodeDecodeError", "UnicodeEncodeError", "IndexError", "ZeroDivisionError")


def data_error(error: BaseException) -> str | None:
    """What an expression or the decoder has raised, if that is why the job failed; None for every other failure."""
    cause = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    while cause is not None:
        kind, text = str(cause.getClass().getName()), str(cause.getMessage())
        if kind == _PYTHON_WORKER:
            return _python_error(text)
        if (kind.startswith(_SPARK_PREFIX) and kind not in _NOT_DATA) or kind.startswith(_JAVA):
            return _first_line(text)
        cause = cause.getCause()
    return None


def _python_error(traceback: str) -> str | None:
    """The line that names the exception of a worker. The traceback's own lines are indented."""
    lines = [line for line in traceback.splitlines() if line and not line.startswith(" ")]
    last = lines[-1] if lines else ""
    return last[:300] if last.startswith((*_PYTHON, *_PYTHON_MORE)) else None


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else "expression failed"


def cause_of(error: BaseException) -> str:
    """The line of a Spark error that says what happened."""
    if isinstance(error, RollforwardError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("statestore.") or "RAISE_ERROR" in line.upper()]
    return (telling or lines or [type(error).__name__])[-1 if telling else 0][:500]


def find_refused(
    ranges: tuple[Range, ...], failure: Callable[[tuple[Range, ...]], str | None], *, most: int
) -> tuple[Refused, ...]:
    """The records that fail when they are alone, each with its reason. `failure` tries some offsets and says why they fail.

    A record is tried twice before it is refused. Raises `InvalidInput` with more than `most` of them, and whatever
    `failure` raises. Empty if the batch fails only as a whole.
    """
    found: list[Refused] = []
    pending = [ranges]
    while pending:
        part = pending.pop()
        reason = failure(part)
        if reason is None:
            continue
        if count_offsets(part) > 1:
            # The first half lies on top, so records are found in the order of their offsets.
            pending += reversed(_halves(part))
            continue
        reason = failure(part)
        if reason is None:
            continue
        (only,) = [r for r in part if r.end > r.start]
        found.append(Refused(only.partition, only.start, f"expression failed: {reason}"))
        if len(found) > most:
            raise InvalidInput(
                "too many records of one batch fail",
                records=len(found),
                reason=reason,
                hint="correct the query, or raise poisoned_records_max",
            )
    return tuple(found)


def _halves(ranges: tuple[Range, ...]) -> list[tuple[Range, ...]]:
    """The offsets in two parts of equal size, partition after partition."""
    left = count_offsets(ranges) // 2
    first: list[Range] = []
    second: list[Range] = []
    for r in ranges:
        cut = r.start + min(left, r.offsets)
        left -= cut - r.start
        first += [_between(r, r.start, cut)] if cut > r.start else []
        second += [_between(r, cut, r.end)] if cut < r.end else []
    return [tuple(first), tuple(second)]


def _between(whole: Range, start: int, end: int) -> Range:
    return Range(whole.topic, whole.topic_id, whole.partition, start, end)


def by_place(refused: tuple[Refused, ...]) -> dict[tuple[int, int], str]:
    """Reasons by partition and offset, as the decoder takes them."""
    return {(r.partition, r.offset): r.reason for r in refused}
