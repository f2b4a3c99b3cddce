"""The benchmark of the stores: its keys, its clock, its work, and the processes that it kills."""

from __future__ import annotations

import time
from itertools import chain
from pathlib import Path

import pytest

from tests.benchmarks.storekilled import ALL, in_copy, lived
from tests.benchmarks.stores import report, table
from tests.benchmarks.storework import PLAIN, SYSTEMS, Keys, Meter, done_by, make

COUNT = 20_000


def test_keys_are_distinct_and_shares_of_them_are_some_of_them() -> None:
    keys = Keys(COUNT)
    every = list(chain.from_iterable(keys.shuffled()))
    assert sorted(every) == list(chain.from_iterable(keys.ascending()))
    assert [b"%016d" % number for number in range(COUNT)] == sorted(every) != every
    assert sorted(every[: COUNT // 5]) == list(chain.from_iterable(keys.ascending(5)))


def test_what_is_made_apart_is_not_counted() -> None:
    def made() -> list[int]:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass
        return [1]

    with Meter() as meter:
        assert [[1], [1]] == list(meter.apart(made() for _ in range(2)))
    assert meter.spent[0] < 0.1


@pytest.mark.parametrize("system", [PLAIN, *SYSTEMS])
def test_every_system_does_all_of_the_work(tmp_path: Path, system: str) -> None:
    made = make(system, tmp_path, Keys(COUNT))
    for run in made.work.values():
        with Meter() as meter:
            run(meter)
        assert meter.spent[0] > 0
    assert made.work.keys() <= done_by(COUNT).keys()
    made.close()


def test_a_killed_process_tells_what_its_work_took_and_leaves_a_store_that_opens() -> None:
    plain, _ = lived(COUNT, PLAIN, ALL)
    ours, opened = lived(COUNT, "INDEXED_BATCH", ALL)
    rows = report({PLAIN: plain, "INDEXED_BATCH": ours}, COUNT)
    assert set(done_by(COUNT)) == {row["work"] for row in rows}
    assert float(str(opened["wall_ms"])) > 0
    assert "| INDEXED_BATCH |" in table(rows)


def test_a_store_killed_in_a_copy_has_all_of_the_commit() -> None:
    assert float(str(in_copy(10 * COUNT)["wall_ms"])) > 0
