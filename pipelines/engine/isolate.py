"""Finding the records that a batch fails of, so that one poisoned record does not stop a pipeline.

An expression that raises fails the whole Spark job and says nothing of the record. So the batch is tried without
WRITE, which stages nothing, on ever smaller halves of its input until the halves that fail are single records. That
costs about two jobs for each halving and record. So a search ends with the `most`-th record, and the batch behind it:
what follows is the next batch's to search, and what was found is committed meanwhile. So it does between two halves that
fail together and not alone, such as amounts whose sum is too large: with the first half committed, the record of the
second that is one too many fails alone. And so it does in front of a record that fails alone and not where it stands,
such as an amount for which those before it make room: with them committed it is tried again. Where no record matters to
another, and in a period, whose records are many, a record that fails alone twice is refused.

Only what an expression or the decoder raises counts against a record, and a result that its topic does not take. A
server, worker or broker that is gone raises too, and a good record must never be given up for that: every other error
ends the search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from pipelines.engine.resultlimit import ResultTooLarge
from statestore.batches import Planned, Range, Refused, count_offsets
from statestore.errors import InvalidInput, RollforwardError, text_of

log = structlog.get_logger()
_FAILED = "expression failed: "
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
_TOO_LARGE = f"{ResultTooLarge.__module__}.{ResultTooLarge.__qualname__}: "
_PYTHON = ("pyarrow.lib.Arrow", "ValueError", "TypeError", "KeyError", "OverflowError", "ArithmeticError", "decimal.")
# What a worker fails of that has no memory left, or is to end.
_PYTHON_NOT_DATA = ("pyarrow.lib.ArrowMemoryError", "pyarrow.lib.ArrowCancelled")
_PYTHON_MORE = ("RecursionError", "UnicodeDecodeError", "UnicodeEncodeError", "IndexError", "ZeroDivisionError")


def data_error(error: BaseException) -> str | None:
    """What an expression, the decoder or a result that is too large has raised; None for every other failure of a job."""
    cause = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    while cause is not None:
        kind, text = str(cause.getClass().getName()), str(cause.getMessage())
        if kind == _PYTHON_WORKER:
            return _python_error(text)
        if (kind.startswith(_SPARK_PREFIX) and kind not in _NOT_DATA) or kind.startswith(_JAVA):
            return f"{_FAILED}{_first_line(text)}"
        cause = cause.getCause()
    return None


def _python_error(traceback: str) -> str | None:
    """The line that names the exception of a worker. The traceback's own lines are indented."""
    lines = [line for line in traceback.splitlines() if line and not line.startswith(" ")]
    last = lines[-1] if lines else ""
    if last.startswith(_TOO_LARGE):
        return last.removeprefix(_TOO_LARGE)
    of_data = last.startswith((*_PYTHON, *_PYTHON_MORE)) and not last.startswith(_PYTHON_NOT_DATA)
    return f"{_FAILED}{last[:300]}" if of_data else None


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else "no message"


def cause_of(error: BaseException) -> str:
    """The line of a Spark error that says what happened."""
    if isinstance(error, RollforwardError):
        return str(error)
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("statestore.") or "RAISE_ERROR" in line.upper()]
    return (telling or lines or [type(error).__name__])[-1 if telling else 0][:500]


Failure = Callable[[Planned, tuple[Range, ...]], str | None]
# Is given some offsets, and what is to be left out of them.
Trial = Callable[[tuple[Range, ...], tuple[Refused, ...]], str | None]
# The first so many of some offsets.
Cut = Callable[[tuple[Range, ...], int], tuple[Range, ...]]


def without_refused(
    planned: Planned, failure: Failure, *, most: int, stateless: bool = False, cut: Cut | None = None
) -> Planned:
    """The batch without the records that it fails of, perhaps over fewer offsets. It does not fail when it is tried.

    `failure` says why a batch fails of some of its offsets. Of a `stateless` query no record matters to another. `cut` says
    where a shorter batch ends that has so many offsets. Unchanged if the batch does not fail any more. Raises
    `InvalidInput` for a period that is computed again and would have to be cut, or fails of more than `most` records;
    and for a record that fails though it is left out, whose reason is not the record.
    """
    period = planned.recompute
    while True:
        read = planned.ranges if period is None else period.ranges
        # A period is long: to read all in front of each record would take hours.
        alone = stateless or period is not None
        most_found = most if period is None else most + 1
        found, known = find_refused(read, _trial(failure, planned), most=most_found, alone=alone)
        again = {(r.partition, r.offset) for r in planned.refused} & {(r.partition, r.offset) for r in found}
        if again:
            partition, offset = min(again)
            raise InvalidInput(
                "record fails though it is left out",
                partition=partition,
                offset=offset,
                error=found[0].reason,
                hint="the query fails of something else than its records; nothing of the batch is committed",
            )
        many = len(found) > most
        if period is not None and (many or known != read):
            raise InvalidInput(
                "period fails of more records than can be left out" if many else "period fails of its records together",
                request=period.request,
                records=len(found),
                hint="correct the query, or raise poisoned_records_max" if many else "correct the query",
            )
        if not found and known == read:
            return planned
        if cut is not None and known != read:
            shorter = cut(read, count_offsets(known))
            # It is rounded up.
            known = shorter if count_offsets(shorter) < count_offsets(read) else known
        # What is left is tried once more, for it may fail together. What lies behind it now is another batch's, and what
        # was refused behind a record that is found only now may have failed because of that one.
        ends = {r.partition: r.end for r in known}
        found = tuple(r for r in found if r.offset < ends[r.partition])
        ends |= {r.partition: r.offset for r in reversed(found)}
        refused = tuple(r for r in planned.refused if r.offset < ends[r.partition]) + found
        planned = replace(planned, refused=refused, ranges=planned.ranges if period else known)


def _trial(failure: Failure, planned: Planned) -> Trial:
    """A trial of the batch's offsets."""
    return lambda part, without: failure(replace(planned, refused=planned.refused + without), part)


def find_refused(
    ranges: tuple[Range, ...], failure: Trial, *, most: int, alone: bool = False
) -> tuple[tuple[Refused, ...], tuple[Range, ...]]:
    """The records that fail when they are alone, each with its reason; and the offsets up to which they were searched for.

    `failure` tries some offsets and says why they fail. A record is tried twice before it is refused: alone, and behind
    what is in front of it, without what was found there, or `alone` once more. All of `ranges` are searched, unless `most` are found, halves
    that fail together only, or a record that fails alone only: it ends with that record, the first half, or in front of
    that record, at about the same part of every partition. Without the records that were found the rest may fail again,
    as a sum does. Raises whatever `failure` raises.
    """
    found: list[Refused] = []
    # Before which every offset of a partition has been searched.
    ends = {r.partition: r.start for r in ranges}
    pending: list[tuple[Range, ...] | _Together] = [ranges]
    while pending:
        part = pending.pop()
        if isinstance(part, _Together):
            if len(found) == part.found_before:
                return tuple(found), _up_to(ranges, {**ends, **{r.partition: r.start for r in part.second}})
            continue
        reason = failure(part, ())
        if reason is not None and count_offsets(part) > 1:
            first, second = _halves(part)
            # The first half lies on top, so the records of a partition are found in the order of their offsets.
            pending += [_Together(second, len(found)), second, first]
            continue
        before, ends = ends, ends | {r.partition: r.end for r in part}
        if reason is not None and failure(part if alone else _up_to(ranges, ends), tuple(found)) is None:
            if not alone:
                front = _up_to(ranges, before)
                # The first one has failed once only.
                return tuple(found), front if count_offsets(front) else _up_to(ranges, ends)
        elif reason is not None:
            (only,) = [r for r in part if r.offsets]
            found.append(Refused(only.partition, only.start, reason))
            log.warning("record is refused", partition=only.partition, offset=only.start, reason=reason)
        if len(found) == most:
            break
    return tuple(found), _up_to(ranges, ends)


@dataclass(frozen=True)
class _Together:
    """Behind two halves: the second, and how many records had been found before them."""

    second: tuple[Range, ...]
    found_before: int


def _up_to(ranges: tuple[Range, ...], ends: Mapping[int, int]) -> tuple[Range, ...]:
    return tuple(_between(r, r.start, ends[r.partition]) for r in ranges)


def _halves(ranges: tuple[Range, ...]) -> list[tuple[Range, ...]]:
    """The first and the second half of every partition; of single records, half of the partitions."""
    ranges = tuple(r for r in ranges if r.offsets)
    if all(r.offsets == 1 for r in ranges):
        return [ranges[: len(ranges) // 2], ranges[len(ranges) // 2 :]]
    cuts = [r.start + (r.offsets + 1) // 2 for r in ranges]
    first = tuple(_between(r, r.start, cut) for r, cut in zip(ranges, cuts, strict=True))
    second = tuple(_between(r, cut, r.end) for r, cut in zip(ranges, cuts, strict=True) if cut < r.end)
    return [first, second]


def _between(whole: Range, start: int, end: int) -> Range:
    return Range(whole.topic, whole.topic_id, whole.partition, start, end)


def by_place(refused: tuple[Refused, ...]) -> dict[tuple[int, int], str]:
    """Reasons by partition and offset, as the decoder takes them."""
    return {(r.partition, r.offset): r.reason for r in refused}
