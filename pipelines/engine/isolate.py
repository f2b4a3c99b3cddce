"""Finding the records that a batch fails of, so that one poisoned record does not stop a pipeline.

An expression that raises fails the whole Spark job and says nothing of the record. So the batch is tried without
WRITE, which stages nothing, on ever smaller halves of its input until the halves that fail are single records. That
costs about two jobs for each halving and record. So a search ends with the `most`-th record, and the batch behind it:
what follows is the next batch's to search, and what was found is committed meanwhile. So it does between two halves that
fail together and not alone, such as amounts whose sum is too large: with the first half committed, the record of the
second that is one too many fails alone.

Only what an expression or the decoder raises counts against a record. A server, worker or broker that is gone raises
too, and a good record must never be given up for that: every other error ends the search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import structlog

from statestore.batches import Planned, Range, Refused, count_offsets
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


Failure = Callable[[Planned, tuple[Range, ...]], str | None]


def without_refused(planned: Planned, failure: Failure, *, most: int) -> Planned:
    """The batch without the records that it fails of, perhaps over fewer offsets. It does not fail when it is tried.

    `failure` says why a batch fails of some of its offsets. A period that is computed again has no fewer offsets: raises
    `InvalidInput` where it would have to. Unchanged if the batch does not fail any more.
    """
    while True:
        period = planned.recompute
        read = planned.ranges if period is None else period.ranges
        found, known = find_refused(read, partial(failure, planned), most=most)
        if known != read and period is not None:
            raise InvalidInput(
                "period fails of more records than can be left out",
                request=period.request,
                records=len(found),
                hint="correct the query, or raise poisoned_records_max",
            )
        if not found and known == read:
            return planned
        # What is left is tried once more, for it may fail together. What lies behind it now is another batch's.
        ends = {r.partition: r.end for r in known}
        refused = tuple(r for r in planned.refused + found if r.offset < ends[r.partition])
        planned = replace(planned, refused=refused, ranges=planned.ranges if period else known)


def find_refused(
    ranges: tuple[Range, ...], failure: Callable[[tuple[Range, ...]], str | None], *, most: int
) -> tuple[tuple[Refused, ...], tuple[Range, ...]]:
    """The records that fail when they are alone, each with its reason; and the offsets up to which they were searched for.

    `failure` tries some offsets and says why they fail. A record is tried twice before it is refused. All of `ranges` are
    searched, unless `most` are found, or halves that fail together only: it ends with that record, or the first half.
    Without the records that were found the rest may fail again, as a sum does. Raises whatever `failure` raises.
    """
    found: list[Refused] = []
    pending: list[tuple[Range, ...] | _Together] = [ranges]
    while pending:
        part = pending.pop()
        if isinstance(part, _Together):
            if len(found) == part.found_before:
                return tuple(found), _up_to(ranges, part.partition, part.end)
            continue
        reason = failure(part)
        if reason is None:
            continue
        if count_offsets(part) > 1:
            first, second = _halves(part)
            # The first half lies on top, so records are found in the order of their offsets.
            pending += [_Together(first[-1].partition, first[-1].end, len(found)), second, first]
            continue
        reason = failure(part)
        if reason is None:
            continue
        (only,) = [r for r in part if r.end > r.start]
        found.append(Refused(only.partition, only.start, f"expression failed: {reason}"))
        log.warning("record is refused", partition=only.partition, offset=only.start, reason=reason)
        if len(found) == most:
            return tuple(found), _up_to(ranges, only.partition, only.end)
    return tuple(found), ranges


@dataclass(frozen=True)
class _Together:
    """Behind two halves: where the first ends, and how many records had been found before them."""

    partition: int
    end: int
    found_before: int


def _up_to(ranges: tuple[Range, ...], partition: int, end: int) -> tuple[Range, ...]:
    """The offsets before this one, partition after partition; none of the partitions behind it."""
    at = [r.partition for r in ranges].index(partition)
    ends = [r.end if n < at else r.start if n > at else end for n, r in enumerate(ranges)]
    return tuple(_between(r, r.start, end) for r, end in zip(ranges, ends, strict=True))


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
