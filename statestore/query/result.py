"""What comes back from a query: per partition an answer with the store's position, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from statestore.position import Position

R = TypeVar("R")


class FailureReason(Enum):
    """Why a partition did not answer."""

    UNKNOWN_QUERY_TYPE = "unknown_query_type"  # the store does not know this query: ask another
    NOT_ACTIVE = "not_active"  # being restored, or a standby where an active one was asked for: ask elsewhere or later
    NOT_UP_TO_BOUND = "not_up_to_bound"  # behind the position asked for: ask later
    NOT_PRESENT = "not_present"  # the partition is not open here: ask elsewhere
    DOES_NOT_EXIST = "does_not_exist"  # there is no such partition anywhere
    STORE_EXCEPTION = "store_exception"  # the store failed: the message says how


@dataclass(frozen=True)
class QueryResult(Generic[R]):
    """One partition's. `position` is how far the store was when it was asked; the answer is at least as new."""

    answer: R | None = None
    failure_reason: FailureReason | None = None
    failure_message: str = ""
    position: Position = field(default_factory=Position)
    execution_info: tuple[str, ...] = ()

    @property
    def is_success(self) -> bool:
        """Whether there is an answer, which may be None."""
        return self.failure_reason is None

    @property
    def result(self) -> R | None:
        """The answer. Raises `ValueError` for a partition that failed."""
        if self.failure_reason is not None:
            raise ValueError(f"a failed query has no result: {self.failure_reason.value}: {self.failure_message}")
        return self.answer


@dataclass(frozen=True)
class StateQueryResult(Generic[R]):
    """The results by partition."""

    partition_results: Mapping[int, QueryResult[R]]

    @property
    def only_partition_result(self) -> QueryResult[R] | None:
        """The one that has an answer; None if none has. Raises `ValueError` if several have."""
        found = [result for result in self.partition_results.values() if result.answer is not None]
        if len(found) > 1:
            raise ValueError(f"{len(found)} partitions have an answer, not one")
        return found[0] if found else None

    @property
    def position(self) -> Position:
        """The positions of all partitions together: as a bound of the next request it never goes back in time."""
        merged = Position()
        for result in self.partition_results.values():
            merged = merged.merged(result.position)
        return merged
