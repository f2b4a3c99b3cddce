"""What a versioned store promises, over every mechanism and base.

SI is the segment interval, a third of the history retention; times near it put versions into two segments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statestore.context import ChangelogRecord
from statestore.errors import InvalidStateStore
from statestore.kinds.versioned import (
    NOT_PUT,
    ResultOrder,
    Versioned,
    default_segment_interval_ms,
)
from statestore.layouts.timelines import VersionedRecord
from statestore.store import Isolation
from statestore.windows import MAX_TIME_MS
from tests.statestore.conftest import TRANSACTIONAL, TaskUnderTest

RETENTION = 300_000
SI = RETENTION // 3
Puts = list[tuple[str | None, int]]


def value(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def version(text: str, valid_from_ms: int, valid_to_ms: int | None = None) -> VersionedRecord:
    return VersionedRecord(text.encode(), valid_from_ms, valid_to_ms)


def put_all(store: Versioned, puts: Puts, key: bytes = b"k") -> list[int | None]:
    return [store.put(key, value(text), time) for text, time in puts]


def restore_all(store: Versioned, puts: Puts, key: bytes = b"k") -> None:
    store.restore([ChangelogRecord(store.name, key, value(text), time) for text, time in puts])


def timeline(store: Versioned, *times: int, key: bytes = b"k") -> list[VersionedRecord | None]:
    return [store.get(key, time) for time in times]


@pytest.fixture
def store(task: TaskUnderTest) -> Versioned:
    return task.open(Versioned("s", history_retention_ms=RETENTION, segment_interval_ms=SI, **task.setup.options))


class TestPut:
    @pytest.mark.case("V-01")
    def test_the_newest_put_is_the_latest_and_ends_the_one_before(self, store: Versioned) -> None:
        assert [None, None] == put_all(store, [("v", 10), ("v2", 11)])
        assert version("v2", 11) == store.get(b"k")
        assert [version("v", 10, 11), version("v2", 11), version("v2", 11)] == timeline(store, 10, 11, 12)

    @pytest.mark.case("V-02")
    def test_a_key_of_tombstones_has_no_value_at_any_time(self, store: Versioned) -> None:
        assert [None, None] == put_all(store, [(None, 10), (None, 11)])
        assert [None] * 5 == [store.get(b"k"), *timeline(store, 9, 10, 11, 12)]

    @pytest.mark.case("V-03")
    def test_older_puts_give_until_when_they_are_valid(self, store: Versioned) -> None:
        assert [None, 10, 10, 8] == put_all(store, [("v", 10), ("v2", 8), ("v1", 9), ("v4", 6)])
        assert version("v", 10) == store.get(b"k") == store.get(b"k", 10)
        assert [version("v1", 9, 10), version("v2", 8, 9), version("v4", 6, 8)] == timeline(store, 9, 8, 7)

    @pytest.mark.case("V-04")
    def test_older_puts_below_a_tombstone(self, store: Versioned) -> None:
        assert [None, 10, 10, 8] == put_all(store, [(None, 10), ("v2", 8), ("v1", 9), ("v4", 6)])
        assert [None, None] == [store.get(b"k"), store.get(b"k", 10)]
        assert [version("v1", 9, 10), version("v2", 8, 9), version("v4", 6, 8)] == timeline(store, 9, 8, 7)

    @pytest.mark.case("V-05")
    @pytest.mark.parametrize("latest", ["v", None])
    def test_tombstones_between_values(self, store: Versioned, latest: str | None) -> None:
        puts: Puts = [(latest, 10), (None, 8), (None, 9), (None, 6), ("v5", 5), ("v3", 7), (None, 4)]
        assert [None, 10, 10, 8, 6, 8, 5] == put_all(store, puts)
        assert (None if latest is None else version("v", 10)) == store.get(b"k")
        expected = [None, None, version("v3", 7, 8), None, version("v5", 5, 6), None]
        assert expected == timeline(store, 9, 8, 7, 6, 5, 4)

    @pytest.mark.case("V-06", "V-07")
    def test_a_put_at_the_same_time_replaces(self, store: Versioned) -> None:
        assert [None, None] == put_all(store, [("to_be_replaced", 10), ("b", 10)])
        assert [version("b", 10), version("b", 10), None] == [store.get(b"k"), *timeline(store, 10, 9)]
        for _ in range(2):
            assert store.put(b"k", None, 10) is None
            assert [None, None, None] == [store.get(b"k"), *timeline(store, 10, 9)]
        assert store.put(b"k", b"b", 10) is None
        assert [version("b", 10), version("b", 10), None] == [store.get(b"k"), *timeline(store, 10, 9)]

    @pytest.mark.case("V-12", "V-13", "V-14")
    def test_delete_gives_the_version_that_was_valid_then(self, store: Versioned) -> None:
        put_all(store, [("vp20", SI + 20), ("vp10", SI + 10), ("vn10", SI - 10), ("vn2", SI - 2)])
        assert version("vn10", SI - 10, SI - 2) == store.delete(b"k", SI - 5)
        assert version("vp10", SI + 10, SI + 20) == store.delete(b"k", SI + 10)
        assert store.delete(b"k", SI + 10) is None
        assert version("vp20", SI + 20) == store.delete(b"k", SI + 25)
        assert store.get(b"k") is None

    @pytest.mark.case("V-19")
    def test_an_empty_value_is_a_value_and_none_is_a_tombstone(self, store: Versioned) -> None:
        times = [SI + 20, SI - 10, SI - 1, SI + 1, SI + 10]
        put_all(store, [(None, time) for time in times] + [("", SI + 5), ("", SI - 5), ("", SI - 6)])
        assert [None] * 6 == [store.get(b"k"), *timeline(store, SI + 30, SI + 15, SI + 2, SI, SI - 8)]
        expected = [version("", SI + 5, SI + 10), version("", SI - 5, SI - 1), version("", SI - 6, SI - 5)]
        assert expected == timeline(store, SI + 6, SI - 5, SI - 6)

    def test_a_key_that_is_none_is_refused(self, store: Versioned) -> None:
        nothing: Any = None
        for call in (
            lambda: store.put(nothing, b"v", 1),
            lambda: store.get(nothing),
            lambda: store.delete(nothing, 1),
        ):
            with pytest.raises(TypeError):
                call()

    def test_a_closed_store_refuses_everything(self, store: Versioned) -> None:
        store.close()
        for call in (lambda: store.put(b"k", b"v", 1), lambda: store.get(b"k"), lambda: store.versions(b"k")):
            with pytest.raises(InvalidStateStore):
                call()


REPEATED: Puts = [
    ("to_be_replaced", SI + 20),
    (None, SI - 10),
    ("to_be_replaced", SI - 10),
    (None, SI - 10),
    ("to_be_replaced", SI - 1),
    ("to_be_replaced", SI + 1),
    (None, SI - 1),
    (None, SI + 1),
    (None, SI + 10),
    (None, SI + 5),
    ("vp5", SI + 5),
    ("to_be_replaced", SI - 5),
    ("vn5", SI - 5),
    (None, SI + 20),
    (None, SI + 20),
    ("vn6", SI - 6),
]
REPEATED_VALID_TO = [
    None,
    *[SI + 20] * 5,
    SI + 1,
    SI + 20,
    SI + 20,
    SI + 10,
    SI + 10,
    SI - 1,
    SI - 1,
    None,
    None,
    SI - 5,
]
IN_ORDER: Puts = [
    (None, SI - 20),
    ("vn10", SI - 10),
    (None, SI - 1),
    (None, SI + 1),
    ("vp10", SI + 10),
    (None, SI + 20),
]
MOVED: Puts = [
    ("vp20", SI + 20),
    ("vp10", SI + 10),
    ("vn10", SI - 10),
    ("vn2", SI - 2),
    ("vn1", SI - 1),
    ("vp1", SI + 1),
]


def assert_repeated(store: Versioned) -> None:
    assert [None] * 7 == [store.get(b"k"), *timeline(store, SI + 30, SI + 15, SI + 2, SI, SI - 1, SI - 8)]
    expected = [version("vp5", SI + 5, SI + 10), version("vn5", SI - 5, SI - 1), version("vn6", SI - 6, SI - 5)]
    assert expected == timeline(store, SI + 6, SI - 5, SI - 6)


def assert_in_order(store: Versioned) -> None:
    assert [None] * 7 == [store.get(b"k"), *timeline(store, SI + 30, SI + 5, SI + 2, SI, SI - 1, SI - 15)]
    expected = [version("vp10", SI + 10, SI + 20), version("vn10", SI - 10, SI - 1)]
    assert expected == timeline(store, SI + 15, SI - 5)


def assert_moved(store: Versioned) -> None:
    assert [version("vp20", SI + 20)] * 2 == [store.get(b"k"), store.get(b"k", SI + 30)]
    expected = [
        version("vp10", SI + 10, SI + 20),
        version("vp1", SI + 1, SI + 10),
        version("vn1", SI - 1, SI + 1),
        version("vn1", SI - 1, SI + 1),
        version("vn2", SI - 2, SI - 1),
        version("vn10", SI - 10, SI - 2),
    ]
    assert expected == timeline(store, SI + 15, SI + 5, SI, SI - 1, SI - 2, SI - 5)


class TestSegments:
    @pytest.mark.case("V-08")
    def test_the_same_times_again_across_a_segment_boundary(self, store: Versioned) -> None:
        assert REPEATED_VALID_TO == put_all(store, REPEATED)
        assert_repeated(store)

    @pytest.mark.case("V-09")
    def test_puts_in_order_over_several_segments(self, store: Versioned) -> None:
        assert [None] * 6 == put_all(store, IN_ORDER)
        assert_in_order(store)

    @pytest.mark.case("V-10")
    def test_a_version_that_ends_earlier_moves_to_an_older_segment(self, store: Versioned) -> None:
        assert [None, SI + 20, *[SI + 10] * 4] == put_all(store, MOVED)
        assert_moved(store)

    @pytest.mark.case("V-10")
    def test_tombstones_move_to_an_older_segment_too(self, store: Versioned) -> None:
        puts: Puts = [(None, time) for time in (SI + 20, SI - 1, SI + 1, SI - 10, SI + 10)]
        puts += [("vp5", SI + 5), ("vn5", SI - 5), ("vn6", SI - 6)]
        expected = [None, SI + 20, SI + 20, SI - 1, SI + 20, SI + 10, SI - 1, SI - 5]
        assert expected == put_all(store, puts)
        assert_repeated(store)

    @pytest.mark.case("V-11")
    def test_an_old_tombstone_is_kept_where_it_ends(self, store: Versioned) -> None:
        puts: Puts = [("vp30", SI + 30), (None, SI - 10), ("vn5", SI - 5), ("vn1", SI - 1), (None, SI - 2)]
        assert [None, SI + 30, SI + 30, SI + 30, SI - 1] == put_all(store, puts)
        assert version("vp30", SI + 30) == store.get(b"k")
        expected = [version("vn1", SI - 1, SI + 30), None, version("vn5", SI - 5, SI - 2), None]
        assert expected == timeline(store, SI + 10, SI - 2, SI - 5, SI - 10)

    def test_an_older_segment_takes_a_version_above_its_own(self, store: Versioned) -> None:
        puts: Puts = [(None, SI - 5), ("vn6", SI - 6), ("vp20", SI + 20), (None, SI + 10), (None, SI - 1)]
        assert [None, SI - 5, None, SI + 20, SI + 10, SI - 1] == put_all(store, [*puts, ("vn2", SI - 2)])
        expected = [None, None, version("vn2", SI - 2, SI - 1), None, version("vn6", SI - 6, SI - 5)]
        assert expected == timeline(store, SI + 12, SI, SI - 2, SI - 5, SI - 6)

    def test_empty_segments_between_are_passed_over(self, store: Versioned) -> None:
        put_all(store, [(None, n * SI - 10) for n in (1, 2, 3)], key=b"ko")
        assert store.get(b"k", SI - 20) is None
        put_all(store, [("v", SI - 20), (None, SI - 10), ("v2", 3 * SI - 20), (None, 3 * SI - 10)])
        assert [None, version("v", SI - 20, SI - 10), None] == timeline(store, SI - 30, SI - 15, SI - 5)

    def test_expired_segments_are_dropped_whole(self, task: TaskUnderTest, store: Versioned) -> None:
        put_all(store, [("a", 0), ("b", SI), ("c", 2 * SI), ("d", 3 * SI)])
        assert ["s", f"s.{SI}", f"s.{2 * SI}", f"s.{3 * SI}"] == store.transaction.spaces()
        put_all(store, [("e", 6 * SI - 1)])
        assert ["s", f"s.{2 * SI}", f"s.{3 * SI}", f"s.{5 * SI}"] == store.transaction.spaces()
        store.commit(5)
        assert {f"s.{SI}"}.isdisjoint(store.transaction.spaces(Isolation.READ_COMMITTED))


class TestGraceAndExpiry:
    @pytest.mark.case("V-15")
    def test_a_put_at_the_end_of_grace_counts_and_an_older_one_does_not(
        self, task: TaskUnderTest, store: Versioned
    ) -> None:
        store.put(b"k", b"v", RETENTION + 10)
        assert store.put(b"k1", b"v1", 10) is None
        assert version("v1", 10) == store.get(b"k1")
        assert NOT_PUT == store.put(b"k2", b"v2", 9)
        assert store.get(b"k2") is None
        assert 1 == task.stores.counters["dropped-records-total", "s"]

    @pytest.mark.case("V-16")
    def test_a_delete_at_the_end_of_grace_counts_and_an_older_one_does_not(
        self, task: TaskUnderTest, store: Versioned
    ) -> None:
        store.put(b"k1", b"v1", 1)
        store.put(b"k2", b"v2", 1)
        store.put(b"kother", b"vother", RETENTION + 10)
        assert version("v1", 1) == store.delete(b"k1", 10)
        assert store.get(b"k1") is None
        assert store.delete(b"k2", 9) is None
        assert version("v2", 1) == store.get(b"k2")
        assert 1 == task.stores.counters["dropped-records-total", "s"]

    @pytest.mark.case("V-17")
    def test_an_old_version_can_be_read_until_the_history_has_passed_it(self, store: Versioned) -> None:
        put_all(store, [("v_old", 0), ("v", SI - 10)])
        assert version("v_old", 0, SI - 10) == store.get(b"k", SI - 11)
        store.put(b"ko", b"vo", RETENTION + SI - 11)
        assert version("v_old", 0, SI - 10) == store.get(b"k", SI - 11)
        store.put(b"ko", b"vo2", RETENTION + SI - 10)
        assert store.get(b"k", SI - 11) is None

    @pytest.mark.case("V-18")
    def test_the_latest_version_never_expires(self, store: Versioned) -> None:
        store.put(b"k", b"v", 1)
        put_all(store, [("old", 1), ("new", RETENTION + 12)], key=b"ko")
        assert version("v", 1) == store.get(b"k", 10)
        assert store.get(b"ko", 10) is None

    @pytest.mark.case("V-31")
    def test_without_history_only_the_latest_version_can_be_read(self, task: TaskUnderTest) -> None:
        store = task.open(Versioned("zero", history_retention_ms=0, segment_interval_ms=SI, **task.setup.options))
        assert store.put(b"k", b"v", 10) is None
        assert [version("v", 10)] * 3 == [store.get(b"k"), *timeline(store, 10, 11)]
        assert store.put(b"k", b"updated", 10) is None
        assert [version("updated", 10)] * 2 == [store.get(b"k"), store.get(b"k", 10)]
        assert store.put(b"k", b"v2", 12) is None
        assert [version("v2", 12), version("v2", 12), None] == [store.get(b"k"), *timeline(store, 12, 11)]
        store.delete(b"k", 13)
        assert store.get(b"k") is None
        assert NOT_PUT == store.put(b"k2", b"v", 12)
        assert store.get(b"k2") is None
        assert 1 == task.stores.counters["dropped-records-total", "zero"]

    @pytest.mark.case("V-32")
    def test_a_name_of_none_a_negative_history_and_an_empty_segment_are_refused(self) -> None:
        with pytest.raises(TypeError):
            Versioned(None, history_retention_ms=1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="retention"):
            Versioned("s", history_retention_ms=-1)
        for interval_ms in (0, -1):
            with pytest.raises(ValueError, match="segment interval"):
                Versioned("s", history_retention_ms=1, segment_interval_ms=interval_ms)

    def test_shorter_histories_have_fewer_segments(self) -> None:
        actual = [default_segment_interval_ms(ms) for ms in (0, 60_000, 300_000, 3_600_000, 86_400_000)]
        assert [2_000, 20_000, 60_000, 300_000, 3_600_000] == actual


HISTORY: Puts = [("v1", SI - 30), ("v2", SI - 25), (None, SI - 20), (None, SI - 15), ("v3", SI - 10), ("v4", SI - 5)]
V1, V2 = version("v1", SI - 30, SI - 25), version("v2", SI - 25, SI - 20)
V3, V4 = version("v3", SI - 10, SI - 5), version("v4", SI - 5)


class TestVersions:
    @pytest.mark.case("V-20", "V-21", "V-22", "V-23", "V-24")
    @pytest.mark.parametrize(
        ("from_ms", "to_ms", "expected"),
        [
            (SI - 30, SI - 5, [V4, V3, V2, V1]),
            (None, None, [V4, V3, V2, V1]),
            (-(2**63), 2**63 - 1, [V4, V3, V2, V1]),
            (SI - 26, SI - 5, [V4, V3, V2, V1]),
            (SI - 4, SI, [V4]),
            (SI - 5, SI - 5, [V4]),
            (SI - 4, SI - 4, [V4]),
            (SI - 31, SI - 21, [V2, V1]),
            (SI - 24, SI - 11, [V2]),
            (SI - 11, SI - 4, [V4, V3]),
            (SI - 15, SI - 10, [V3]),
            (SI - 19, SI - 16, []),
            (SI - 40, SI - 35, []),
        ],
    )
    def test_versions_valid_at_some_time_between_newest_first(
        self, store: Versioned, from_ms: int | None, to_ms: int | None, expected: list[VersionedRecord]
    ) -> None:
        put_all(store, [(None, SI - 10), (None, 2 * SI - 10), (None, 3 * SI - 10)], key=b"ko")
        put_all(store, HISTORY)
        assert expected == list(store.versions(b"k", from_ms, to_ms))

    def test_a_version_that_ends_in_a_later_segment_is_found(self, store: Versioned) -> None:
        put_all(store, [*HISTORY, ("v5", 3 * SI - 30), (None, 3 * SI - 20)])
        assert [version("v4", SI - 5, 3 * SI - 30)] == list(store.versions(b"k", SI - 4, SI))
        assert [V1] == list(store.versions(b"k", SI - 30, SI - 26))
        assert [] == list(store.versions(b"k", SI - 19, SI - 16))

    @pytest.mark.case("V-25")
    def test_ascending_order_in_one_segment_and_across_two(self, store: Versioned) -> None:
        put_all(store, HISTORY)
        assert [V1, V2, V3, V4] == list(store.versions(b"k", order=ResultOrder.ASCENDING))
        times = [SI - 10, SI - 5, 2 * SI - 10, 2 * SI - 5]
        put_all(store, [(f"v{n}", time) for n, time in enumerate(times, 1)], key=b"two")
        expected = [version(f"v{n}", *pair) for n, pair in enumerate(zip(times, [*times[1:], None], strict=True), 1)]
        assert expected == list(store.versions(b"two", order=ResultOrder.ASCENDING))
        assert expected[::-1] == list(store.versions(b"two", order=ResultOrder.DESCENDING))

    @pytest.mark.case("V-26")
    def test_expired_versions_are_not_given_but_the_latest_is(self, store: Versioned) -> None:
        put_all(store, [("v_old", 0), ("v", SI - 10)])
        for time in (SI - 12, RETENTION + SI - 11):
            store.put(b"ko", b"vo", time)
            assert [version("v_old", 0, SI - 10)] == list(store.versions(b"k", 0, SI - 11))
        store.put(b"ko", b"vo2", RETENTION + SI - 10)
        assert [] == list(store.versions(b"k", 0, SI - 11))

    @pytest.mark.case("V-26")
    def test_the_latest_version_is_given_however_old(self, store: Versioned) -> None:
        store.put(b"k", b"v", 1)
        put_all(store, [("old", 1), ("new", RETENTION + 12)], key=b"ko")
        assert [version("v", 1)] == list(store.versions(b"k", 0, 10))
        assert [] == list(store.versions(b"ko", 0, 10))


class TestRestore:
    @pytest.mark.case("V-27", "V-28")
    @pytest.mark.parametrize(
        ("puts", "check"), [(MOVED, assert_moved), (REPEATED, assert_repeated), (IN_ORDER, assert_in_order)]
    )
    def test_a_restored_store_equals_the_one_that_was_written(
        self, store: Versioned, puts: Puts, check: Callable[[Versioned], None]
    ) -> None:
        restore_all(store, puts)
        check(store)

    @pytest.mark.case("V-28")
    def test_two_batches_restore_what_one_does(self, store: Versioned) -> None:
        restore_all(store, IN_ORDER[:3])
        restore_all(store, IN_ORDER[3:])
        assert_in_order(store)

    @pytest.mark.case("V-29")
    def test_a_late_record_is_not_restored_and_not_counted(self, task: TaskUnderTest, store: Versioned) -> None:
        times = [(b"k", RETENTION + 10), (b"k1", 10), (b"k2", 9)]
        store.restore([ChangelogRecord("s", key, b"v", time) for key, time in times])
        assert [version("v", RETENTION + 10), version("v", 10), None] == [store.get(key) for key, _ in times]
        assert 0 == task.stores.counters["dropped-records-total", "s"]

    @pytest.mark.case("V-30")
    def test_lateness_is_judged_at_the_record_and_not_by_the_batch(self, store: Versioned) -> None:
        store.restore([ChangelogRecord("s", b"k2", b"v", 0), ChangelogRecord("s", b"k", b"v", RETENTION + 10)])
        assert [version("v", 0), version("v", RETENTION + 10)] == [store.get(b"k2"), store.get(b"k")]

    def test_stream_time_is_restored_and_survives_a_restart(self, task: TaskUnderTest, store: Versioned) -> None:
        restore_all(store, [("v", RETENTION + 10)])
        store.commit(1)
        store.rollback()
        assert NOT_PUT == store.put(b"k", b"late", 9)


class TestChangelog:
    def test_records_are_key_value_and_time(self, task: TaskUnderTest, store: Versioned) -> None:
        put_all(store, [("v", RETENTION + 10), ("", RETENTION + 5)])
        store.delete(b"k", RETENTION + 7)
        store.put(b"k", b"late", 9)
        expected = [
            ("6b", "76", RETENTION + 10),
            ("6b", "", RETENTION + 5),
            ("6b", None, RETENTION + 7),
            ("6b", "6c617465", 9),
        ]
        actual = [(r.key.hex(), None if r.value is None else r.value.hex(), r.timestamp_ms) for r in task.logged]
        assert expected == actual

    @pytest.mark.case("V-33")
    def test_what_cannot_be_written_is_not_logged(
        self, task: TaskUnderTest, store: Versioned, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError("no space")

        monkeypatch.setattr(store.transaction, "put", fail)
        for call in (lambda: store.put(b"k", b"v", 1), lambda: store.delete(b"k", 1)):
            with pytest.raises(OSError, match="no space"):
                call()
        assert [] == task.logged

    def test_old_versions_are_safe_from_compaction_for_the_length_of_the_history(self, store: Versioned) -> None:
        expected = {
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": str(RETENTION + 86_400_000),
            "message.timestamp.type": "CreateTime",
            "message.timestamp.after.max.ms": str(MAX_TIME_MS),
        }
        assert expected == store.changelog_config()


@pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)
class TestTransaction:
    def test_a_rollback_takes_versions_and_stream_time_back(self, task: TaskUnderTest, store: Versioned) -> None:
        put_all(store, [("a", 10), ("b", 20)])
        store.commit(2)
        put_all(store, [("c", RETENTION + 100), (None, RETENTION + 200)])
        store.rollback()
        assert [version("b", 20), version("a", 10, 20)] == list(store.versions(b"k"))
        assert 20 == store.stream_time_ms
        assert store.put(b"k", b"old", 5) == 10

    def test_read_committed_sees_the_last_commit_and_its_stream_time(
        self, task: TaskUnderTest, store: Versioned
    ) -> None:
        committed = Isolation.READ_COMMITTED
        put_all(store, [("a", 10), ("b", 20)])
        assert [] == list(store.versions(b"k", isolation=committed))
        store.commit(2)
        put_all(store, [("c", 30), ("d", RETENTION + 1000)])
        assert version("b", 20) == store.get(b"k", isolation=committed)
        assert version("a", 10, 20) == store.get(b"k", 15, committed)
        assert [version("b", 20), version("a", 10, 20)] == list(store.versions(b"k", isolation=committed))
        assert store.get(b"k", 15) is None

    def test_a_range_of_versions_is_of_one_commit(self, store: Versioned, monkeypatch: pytest.MonkeyPatch) -> None:
        committed = Isolation.READ_COMMITTED
        put_all(store, [("a", 10), ("b", 20)])
        store.commit(2)
        get, due = store.transaction.get, ["c"]

        def get_and_commit(space: str, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> bytes | None:
            found = get(space, key, isolation)
            if isolation is committed and due:
                due.clear()
                store.put(b"k", b"c", 30)
                store.commit(3)
            return found

        with monkeypatch.context() as between:
            between.setattr(store.transaction, "get", get_and_commit)
            found = list(store.versions(b"k", isolation=committed))
        assert [version("c", 30), version("b", 20, 30), version("a", 10, 20)] == found

    def test_the_version_of_a_time_is_found_though_a_commit_moves_it(
        self, store: Versioned, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        committed = Isolation.READ_COMMITTED
        put_all(store, [("a", 10), ("c", SI + 20)])
        store.commit(2)
        assert version("a", 10, SI + 20) == store.get(b"k", 15, committed)
        spaces, due = store.transaction.spaces, ["b"]

        def spaces_and_commit(isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[str]:
            found = spaces(isolation)
            if isolation is committed and due:
                due.clear()
                # It ends earlier now, and so lies in an older segment, which did not exist.
                store.put(b"k", b"b", 20)
                store.commit(3)
            return found

        with monkeypatch.context() as between:
            between.setattr(store.transaction, "spaces", spaces_and_commit)
            assert version("a", 10, 20) == store.get(b"k", 15, committed)
