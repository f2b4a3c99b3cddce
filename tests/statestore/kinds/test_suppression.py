"""What a suppression buffer promises: one slot a key, oldest out first, and a changelog that old programs wrote."""

from __future__ import annotations

import pytest

from statestore.context import ChangelogRecord, RecordContext
from statestore.errors import DataCorrupted, FormatUnsupported
from statestore.kinds.buffered import FORMAT_HEADERS, Buffered, Change, restored
from statestore.kinds.suppression import EMPTY_MIN_TIME, Eviction, PriorValue, SuppressionBuffer
from tests.statestore.conftest import TRANSACTIONAL, TaskUnderTest


def context(time_ms: int) -> RecordContext:
    return RecordContext("topic", 0, 0, time_ms)


@pytest.fixture
def buffer(task: TaskUnderTest) -> SuppressionBuffer:
    return task.open(SuppressionBuffer("s", **task.setup.options))


def put(buffer: SuppressionBuffer, buffer_time_ms: int, key: bytes, value: bytes, *, record_time_ms: int = 0) -> None:
    buffer.put(buffer_time_ms, key, Change(value), context(record_time_ms))


def drained(buffer: SuppressionBuffer) -> list[Eviction]:
    evicted: list[Eviction] = []
    buffer.evict_while(lambda: True, evicted.append)
    return evicted


class TestBuffer:
    @pytest.mark.case("B-01")
    def test_a_change_of_none_is_refused(self, buffer: SuppressionBuffer) -> None:
        with pytest.raises(TypeError):
            buffer.put(0, b"asdf", None, context(0))  # type: ignore[arg-type]

    @pytest.mark.case("B-02")
    def test_a_key_has_one_slot_with_its_newest_change(self, buffer: SuppressionBuffer) -> None:
        counts = []
        for time, key, value in [(0, b"asdf", b"oin"), (1, b"asdf", b"wekjn"), (0, b"zxcv", b"24inf")]:
            put(buffer, time, key, value)
            counts.append(buffer.num_records)
        assert [1, 1, 2] == counts
        assert [b"wekjn", b"24inf"] == [eviction.change.new for eviction in drained(buffer)]

    def test_size_counts_keys_values_contexts_and_times(self, buffer: SuppressionBuffer) -> None:
        sizes = []
        for time, key, value in [(0, b"asdf", b"23roni"), (1, b"asdf", b"3l"), (0, b"zxcv", b"qfowin")]:
            put(buffer, time, key, value)
            sizes.append(buffer.size_bytes)
        assert [43, 39, 82] == sizes

    @pytest.mark.case("B-03")
    def test_the_least_time_is_known(self, buffer: SuppressionBuffer) -> None:
        assert EMPTY_MIN_TIME == buffer.min_timestamp_ms == 2**63 - 1
        put(buffer, 1, b"asdf", b"2093j")
        assert 1 == buffer.min_timestamp_ms
        put(buffer, 0, b"zxcv", b"3gon4i")
        assert 0 == buffer.min_timestamp_ms

    @pytest.mark.case("B-04")
    def test_the_oldest_leaves_while_the_predicate_holds(self, buffer: SuppressionBuffer) -> None:
        put(buffer, 0, b"asdf", b"eyt")
        put(buffer, 1, b"zxcv", b"rtg")
        evicted: list[Eviction] = []
        buffer.evict_while(lambda: buffer.num_records > 1, evicted.append)
        assert [Eviction(b"asdf", Change(b"eyt"), context(0))] == evicted
        assert 1 == buffer.num_records

    @pytest.mark.case("B-05")
    def test_figures_follow_each_eviction(self, buffer: SuppressionBuffer) -> None:
        put(buffer, 1, b"zxcv", b"o23i4")
        assert (1, 42, 1) == (buffer.num_records, buffer.size_bytes, buffer.min_timestamp_ms)
        put(buffer, 0, b"asdf", b"3ng")
        seen = []

        def look(eviction: Eviction) -> None:
            seen.append((eviction.key, buffer.num_records, buffer.size_bytes, buffer.min_timestamp_ms))

        buffer.evict_while(lambda: True, look)
        assert [(b"asdf", 2, 82, 0), (b"zxcv", 1, 42, 1)] == seen
        assert (0, 0, EMPTY_MIN_TIME) == (buffer.num_records, buffer.size_bytes, buffer.min_timestamp_ms)

    @pytest.mark.case("B-06")
    def test_the_prior_value_is_that_before_the_key_was_buffered(self, buffer: SuppressionBuffer) -> None:
        assert buffer.prior_value(b"unknown") is None
        buffer.put(1, b"A", Change(b"new-value", b"old-value"), context(0))
        buffer.put(1, b"B", Change(b"new-value", None), context(0))
        buffer.put(2, b"A", Change(b"newer-value", b"new-value"), context(1))
        assert PriorValue(b"old-value", -1) == buffer.prior_value(b"A")
        assert PriorValue(None) == buffer.prior_value(b"B")

    @pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)
    def test_a_rollback_takes_puts_and_evictions_back(self, buffer: SuppressionBuffer) -> None:
        put(buffer, 1, b"a", b"1")
        put(buffer, 2, b"b", b"2")
        buffer.commit(1)
        buffer.evict_while(lambda: buffer.num_records > 1, lambda _: None)
        put(buffer, 0, b"c", b"3")
        buffer.rollback()
        assert (2, 1) == (buffer.num_records, buffer.min_timestamp_ms)
        assert [b"a", b"b"] == [eviction.key for eviction in drained(buffer)]


class TestChangelog:
    @pytest.mark.case("B-07")
    def test_a_flush_writes_each_changed_key_once_and_tombstones_for_what_has_left(
        self, task: TaskUnderTest, buffer: SuppressionBuffer
    ) -> None:
        put(buffer, 2, b"asdf", b"2093j")
        put(buffer, 1, b"zxcv", b"3gon4i", record_time_ms=1)
        put(buffer, 0, b"deleteme", b"deadbeef", record_time_ms=2)
        buffer.evict_while(lambda: buffer.min_timestamp_ms < 1, lambda _: None)
        assert [] == task.logged
        buffer.flush_cache()
        flushed = {record.key: (record.value, record.headers) for record in task.logged}
        # context: time, offset, topic, partition, no headers; prior, old, new; buffer time
        asdf = (
            "0000000000000000" "0000000000000000" "00000005" + b"topic".hex() + "00000000" "00000000"
            "ffffffff" "ffffffff" "00000005" + b"2093j".hex() + "0000000000000002"
        )  # fmt: skip
        zxcv = (
            "0000000000000001" "0000000000000000" "00000005" + b"topic".hex() + "00000000" "00000000"
            "ffffffff" "ffffffff" "00000006" + b"3gon4i".hex() + "0000000000000001"
        )  # fmt: skip
        expected = {
            b"asdf": (bytes.fromhex(asdf), (("v", b"\x03"),)),
            b"zxcv": (bytes.fromhex(zxcv), (("v", b"\x03"),)),
            b"deleteme": (None, ()),
        }
        assert expected == flushed
        assert 3 == len(task.logged)
        buffer.flush_cache()
        assert 3 == len(task.logged)

    def test_an_old_value_that_is_the_prior_one_is_written_once(self) -> None:
        record = RecordContext("t", 1, 2, 3, (("h", b"x"),))
        same = Buffered(Change(b"new", b"old"), b"old", record)
        expected = (
            "0000000000000003" "0000000000000002" "00000001" "74" "00000001" "00000001" "00000001" "68" "00000001" "78"
            "00000003" "6f6c64" "fffffffe" "00000003" "6e6577" "0000000000000009"
        )  # fmt: skip
        assert expected == same.to_bytes(9).hex()
        assert (9, same) == read(same.to_bytes(9))


def read(raw: bytes) -> tuple[int, Buffered]:
    return restored(raw, FORMAT_HEADERS, own_context=context(0), buffered=None)


# One change each, derived from the layouts: context (time, offset 0, "topic", partition 0, headers), values, times.
CONTEXTS = {
    key: f"{time:016x}" + "0" * 16 + "00000005" + b"topic".hex() + "00000000" + "ffffffff"
    for key, time in [("todelete", 0), ("asdf", 1), ("zxcv1", 2), ("zxcv2", 3)]
}
NONE = "ffffffff"


def sized(text: str) -> str:
    return f"{len(text):08x}" + text.encode().hex()


def nested(pair: str) -> str:
    return f"{len(pair) // 2:08x}" + pair


CHANGES = {
    "todelete": (NONE, NONE, sized("doomed"), 0),
    "asdf": (NONE, NONE, sized("qwer"), 2),
    "zxcv1": (sized("previous"), sized("IGNORED"), sized("3o4im"), 1),
    "zxcv2": (sized("previous"), sized("3o4im"), sized("next"), 1),
}


def value_bytes(form: int | None, key: str) -> bytes:
    prior, old, new, time = CHANGES[key]
    if form in (None, 1) and key == "zxcv1":
        old = prior  # These formats have no prior value: it is the first old one.
    buffer_time = f"{time:016x}"
    return bytes.fromhex(
        {
            None: buffer_time + old + new,
            1: buffer_time + CONTEXTS[key] + nested(old + new),
            2: CONTEXTS[key] + nested(old + new) + prior + buffer_time,
            3: CONTEXTS[key] + prior + old + new + buffer_time,
        }[form]
    )


class TestRestore:
    @pytest.mark.case("B-08")
    @pytest.mark.parametrize(("form", "header"), [(None, None), (1, 1), (2, 2), (3, 3), (3, 2)])
    def test_every_format_is_read(self, buffer: SuppressionBuffer, form: int | None, header: int | None) -> None:
        headers = () if header is None else (("v", bytes([header])),)
        names = [("todelete", 0), ("asdf", 1), ("zxcv1", 2), ("zxcv2", 3)]
        records = [
            ChangelogRecord("s", name.rstrip("12").encode(), value_bytes(form, name), time, headers)
            for name, time in names
        ]
        buffer.restore(records)
        assert (3, 0) == (buffer.num_records, buffer.min_timestamp_ms)
        if form is not None:
            assert 142 == buffer.size_bytes
        buffer.restore([ChangelogRecord("s", b"todelete", None, 3, headers)])
        assert (2, 1) == (buffer.num_records, buffer.min_timestamp_ms)
        assert [None, PriorValue(None), PriorValue(b"previous", -1)] == [
            buffer.prior_value(key) for key in (b"todelete", b"asdf", b"zxcv")
        ]
        evicted = drained(buffer)
        assert [(b"zxcv", Change(b"next", b"3o4im")), (b"asdf", Change(b"qwer"))] == [
            (e.key, e.change) for e in evicted
        ]
        assert [3, 1] == [e.context.timestamp_ms for e in evicted]
        if form is not None:
            assert [context(3), context(1)] == [e.context for e in evicted]

    @pytest.mark.case("B-08")
    def test_an_unknown_format_is_refused(self, buffer: SuppressionBuffer) -> None:
        with pytest.raises(FormatUnsupported):
            buffer.restore([ChangelogRecord("s", b"k", value_bytes(3, "asdf"), 0, (("v", b"\xff"),))])

    def test_bytes_that_are_no_change_are_refused(self) -> None:
        raw = value_bytes(3, "zxcv2")
        for broken in (b"", raw[:-1], raw + b"x", raw[:30]):
            with pytest.raises(DataCorrupted):
                read(broken)

    def test_what_was_restored_is_committed_and_not_logged_again(
        self, task: TaskUnderTest, buffer: SuppressionBuffer
    ) -> None:
        buffer.restore([ChangelogRecord("s", b"asdf", value_bytes(3, "asdf"), 0, FORMAT_HEADERS)])
        buffer.flush_cache()
        assert [] == task.logged
        buffer.rollback()
        assert 1 == buffer.num_records
