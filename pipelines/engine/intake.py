"""Where a query stands in its source topic, and what its next batch takes from there."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.engine.pace import Pace, shares
from pipelines.engine.source import SourceTopic
from pipelines.engine.timecut import TimeCut
from statestore.batches import Planned, Range, count_offsets


class Intake:
    """The end of the newest planned batch in every partition.

    `lost` is what was lost since, and the next plan names it; `is_cut` is whether some of that was read before. With
    `by_time` a batch ends at one time in all partitions, else it takes a part of each backlog.
    """

    def __init__(self, source: SourceTopic, pace: Pace, by_time: TimeCut | None = None) -> None:
        self.lost: tuple[Range, ...] = ()
        self.is_cut = False
        self._source = source
        self._pace = pace
        self._by_time = by_time
        self._ends: dict[int, int] = {}

    def stands(self, planned: Planned) -> None:
        """Stand behind this batch, which an earlier driver has planned, or this one now."""
        self._ends = {r.partition: r.end for r in planned.ranges}
        self.lost, self.is_cut = (), False

    def take_in(self, begins: Mapping[int, int], *, first: bool) -> None:
        """Stand somewhere in every partition: a new one is read from its beginning. Tells of records that are gone.

        Before the `first` batch a partition's beginning may be past 0, and nothing of ours is lost by that.
        """
        for partition, begin in begins.items():
            self._ends.setdefault(partition, begin if first else 0)
        gone = self._source.deleted(self._ends, dict(begins))
        self._ends |= {each.partition: each.end for each in gone}
        self.lost += gone

    def require_whole(self, ends: Mapping[int, int]) -> bool:
        """Stand where the log ends now in every partition that has lost records of planned batches; tells whether one has."""
        cut = self._source.cut_off(self._ends, ends)
        self._ends |= {each.partition: each.start for each in cut}
        self.lost += cut
        self.is_cut |= bool(cut)
        return bool(cut)

    @property
    def ends(self) -> dict[int, int]:
        """Where the stream stands, by partition."""
        return dict(self._ends)

    def lags(self) -> dict[int, int]:
        """Records of each partition that no planned batch holds; empty before the query is owned."""
        return self._source.lags(self._ends)

    def left(self, ends: Mapping[int, int]) -> int:
        """How many offsets lie before `ends`."""
        return sum(self._backlog(ends).values())

    def next(self, ends: Mapping[int, int], most: int | None = None) -> tuple[Range, ...] | None:
        """What the next batch takes of what lies before `ends`, at most what the pace allows; None if that is nothing.

        most: the offsets that it may take whatever the pace allows.
        """
        backlog = self._backlog(ends)
        if not backlog:
            # A loss has to be in a plan before the log is as long as it was: the next driver would not see it.
            return self.nothing() if self.lost else None
        ranges = self._first_of(backlog, most)
        if self._pace.is_guess(count_offsets(ranges)):
            self._pace.expect(self._source.value_bytes(ranges))
            ranges = self._first_of(backlog, most)
        return ranges

    def _first_of(self, backlog: dict[int, int], most: int | None) -> tuple[Range, ...]:
        most = self._pace.offsets if most is None else min(most, self._pace.offsets)
        taken = shares(backlog, most) if self._by_time is None else self._by_time.taken(self._ends, backlog, most)
        # Partitions without news stay in the plan, so that the newest plan says where every partition stands.
        return tuple(self._source.range(p, at, at + taken.get(p, 0)) for p, at in sorted(self._ends.items()))

    def next_whole(self, ends: Mapping[int, int]) -> tuple[Range, ...] | None:
        """The same, if it is as much as the pace allows."""
        return self.next(ends) if self.left(ends) >= self._pace.offsets else None

    def nothing(self) -> tuple[Range, ...]:
        """Where the stream stands, as ranges of a batch that takes nothing."""
        return tuple(self._source.range(partition, at, at) for partition, at in sorted(self._ends.items()))

    def _backlog(self, ends: Mapping[int, int]) -> dict[int, int]:
        return {p: end - self._ends[p] for p, end in ends.items() if end > self._ends.get(p, end)}
