"""Rates over the last windows, totals and latencies over the whole life; and which figures a store gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore import stores
from statestore.context import ChangelogRecord
from statestore.metrics import WINDOW_S, Metrics
from statestore.store import TransactionalMechanism
from statestore.taskstores import TaskStores
from statestore.typed.key_value import TypedKeyValueStore
from statestore.typed.serdes import BYTES


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_an_event_has_a_rate_and_a_total() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.count("dropped-records-total", "s", 60)
    assert {"dropped-records-rate": 2.0, "dropped-records-total": 60.0} == metrics.figures("s")
    clock.now_s += 45
    metrics.count("dropped-records-total", "s", 30)
    assert {"dropped-records-rate": 2.0, "dropped-records-total": 90.0} == metrics.figures("s")
    clock.now_s += 1000
    assert {"dropped-records-rate": 0.0, "dropped-records-total": 90.0} == metrics.figures("s")


def test_an_operation_has_latencies() -> None:
    metrics = Metrics(Clock())
    for nanos in (100, 300):
        metrics.record("put", "s", nanos)
    figures = metrics.figures("s")
    assert {"put-rate": 2 / 30, "put-latency-avg": 200.0, "put-latency-max": 300.0} == figures


def test_stores_are_counted_apart_and_unknown_ones_are_zero() -> None:
    metrics = Metrics(Clock())
    metrics.count("restore-total", "a", 3)
    assert (3, 0, 0) == tuple(
        metrics.totals()[key] for key in (("restore-total", "a"), ("restore-total", "b"), ("put-total", "a"))
    )


def test_an_event_and_an_operation_of_one_name_are_counted_apart() -> None:
    metrics = Metrics(Clock())
    metrics.count("restore-total", "s", 90)
    for nanos in (100, 300):
        metrics.record("restore", "s", nanos)
    expected = {
        "restore-rate": 90 / WINDOW_S,
        "restore-total": 90.0,
        "restore-latency-avg": 200.0,
        "restore-latency-max": 300.0,
    }
    assert expected == metrics.figures("s")
    assert 90 == metrics.totals()["restore-total", "s"]


def test_a_gauge_is_read_when_somebody_looks_and_can_be_taken_away() -> None:
    metrics, value = Metrics(Clock()), [1]
    metrics.gauge("uncommitted-bytes", "s", lambda: value[0])
    value[0] = 2
    assert ({"uncommitted-bytes": 2.0}, {}) == (metrics.figures("s"), metrics.figures("other"))
    metrics.gauge("uncommitted-bytes", "s", None)
    metrics.gauge("uncommitted-bytes", "s", None)
    assert {} == metrics.figures("s")


def opened(task: TaskStores, mechanism: TransactionalMechanism | None) -> TypedKeyValueStore[bytes, bytes]:
    supplier = stores.persistent_key_value_store("s", mechanism is not None, mechanism=mechanism)
    store = stores.key_value_store_builder(supplier, BYTES, BYTES).build()
    store.init(task)
    return store


def latencies(operation: str) -> set[str]:
    return {f"{operation}-rate", f"{operation}-latency-avg", f"{operation}-latency-max"}


@pytest.mark.parametrize("mechanism", TransactionalMechanism)
def test_uncommitted_bytes_are_those_of_the_open_transaction(tmp_path: Path, mechanism: TransactionalMechanism) -> None:
    task = TaskStores(tmp_path)
    store = opened(task, mechanism)

    def shown() -> float:
        assert store.approximate_num_uncommitted_bytes() == task.metrics.figures("s")["uncommitted-bytes"]
        return store.approximate_num_uncommitted_bytes()

    assert 0 == shown()
    store.put(b"key", b"value")
    assert 8 == shown()
    store.put(b"key", None)
    assert 11 == shown()
    store.rollback()
    assert 0 == shown()
    store.put(b"key", b"value")
    store.commit(1)
    assert 0 == shown()
    task.close()
    assert "uncommitted-bytes" not in task.metrics.figures("s")


def test_a_store_without_transactions_has_nothing_uncommitted(tmp_path: Path) -> None:
    task = TaskStores(tmp_path, exactly_once=False)
    store = opened(task, None)
    store.put(b"key", b"value")
    assert 0 == store.approximate_num_uncommitted_bytes() == task.metrics.figures("s")["uncommitted-bytes"]
    task.close()


def test_commit_flush_restore_and_recover_have_figures_of_their_own(tmp_path: Path) -> None:
    task = TaskStores(tmp_path)
    store = opened(task, TransactionalMechanism.INDEXED_BATCH)
    assert {"uncommitted-bytes"} == set(task.metrics.figures("s"))
    store.recover(None)
    assert {"uncommitted-bytes"} | latencies("recover") == set(task.metrics.figures("s"))
    records = [ChangelogRecord("s", b"%d" % number, b"v", 0) for number in range(7)]
    store.store.restore(records, offset=7)
    store.store.restore(records[:2], offset=9)
    figures = task.metrics.figures("s")
    assert {"uncommitted-bytes", "restore-total"} | latencies("recover") | latencies("restore") == set(figures)
    # Records are what is counted, and the two writes what takes time.
    assert (9.0, 9 / WINDOW_S, 1 / WINDOW_S) == tuple(
        figures[f] for f in ("restore-total", "restore-rate", "recover-rate")
    )
    assert 0 < figures["restore-latency-avg"] < figures["restore-latency-max"] <= 2 * figures["restore-latency-avg"]
    for offset in (10, 11, 12):
        store.put(b"k", b"v")
        store.commit(offset)
    with pytest.warns(DeprecationWarning):
        store.flush()
    figures = task.metrics.figures("s")
    assert (3 / WINDOW_S, 1 / WINDOW_S, 9.0) == tuple(
        figures[f] for f in ("commit-rate", "flush-rate", "restore-total")
    )
    assert latencies("commit") | latencies("flush") <= set(figures)
    assert 0 < figures["commit-latency-avg"] <= figures["commit-latency-max"]
    assert 0 < figures["flush-latency-avg"] == figures["flush-latency-max"]
    task.close()
