"""Iterators: pieces that a loop goes through, looking ahead on the way, and an end that comes from elsewhere."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidStateStore
from statestore.iterator import Flat, OpenIterators, StoreIterator, in_pieces

ENTRIES = [(number, f"value {number}") for number in range(2000)]


def opened(*, ends_with_store: bool = False) -> StoreIterator[int, str]:
    return StoreIterator(in_pieces(ENTRIES), ends_with_store=ends_with_store)


@given(
    st.lists(st.integers(0, 4), max_size=8),
    st.lists(st.sampled_from(["look", "step", "loop", "another loop"]), max_size=40),
)
def test_loops_steps_and_looks_ahead_share_one_place(lengths: list[int], steps: list[str]) -> None:
    pieces = [[(10 * number + row, "v") for row in range(length)] for number, length in enumerate(lengths)]
    expected = [entry for piece in pieces for entry in piece]
    entries = StoreIterator(iter(pieces))
    loop = iter(entries)
    found: list[tuple[int, str]] = []
    for step in steps:
        if len(found) == len(expected):
            break
        match step:
            case "look":
                assert entries.has_next()
                assert expected[len(found)][0] == entries.peek_next_key()
            case "step":
                found.append(next(entries))
            case "loop":
                found.append(next(loop))
            case _:
                found.append(next(iter(entries)))
    found += loop
    assert expected == found
    assert not entries.has_next()
    for end in (entries, loop):
        with pytest.raises(StopIteration):
            next(end)


def test_pieces_grow_and_are_no_larger_than_a_reader_can_hold() -> None:
    sizes = [len(piece) for piece in in_pieces(range(5000))]
    assert [16, 64, 256, 1024] == sizes[:4]
    assert 1024 == max(sizes)


def test_pieces_that_are_there_are_taken_as_they_are() -> None:
    pieces = [[1, 2], [], [3]]
    assert [1, 2, 3] == list(Flat.of(iter(pieces)))
    taken = list(in_pieces(Flat.of(iter(pieces))))
    assert pieces == taken
    assert all(one is other for one, other in zip(pieces, taken, strict=True))


@pytest.mark.parametrize("taken", [0, 1, 15, 16, 17, 1000, 2000])
def test_a_loop_fails_at_the_very_step_after_its_store_was_closed(taken: int) -> None:
    entries, found = opened(), []
    loop = iter(entries)
    found += [next(loop) for _ in range(taken)]
    entries.store_closed()
    with pytest.raises(InvalidStateStore, match="store was closed"):
        next(loop)
    with pytest.raises(InvalidStateStore, match="store was closed"):
        next(entries)
    assert ENTRIES[:taken] == found


@pytest.mark.parametrize("taken", [0, 1, 16, 2000])
def test_a_windowed_loop_ends_with_its_store(taken: int) -> None:
    entries = opened(ends_with_store=True)
    loop = iter(entries)
    assert ENTRIES[:taken] == [next(loop) for _ in range(taken)]
    entries.store_closed()
    assert [] == list(loop)
    assert not entries.has_next()
    entries.close()
    with pytest.raises(InvalidStateStore, match="iterator is closed"):
        entries.has_next()


def test_a_closed_store_shows_through_a_mapped_iterator() -> None:
    entries = opened()
    mapped = entries.map(lambda number, value: (str(number), value))
    loop = iter(mapped)
    assert ("0", "value 0") == next(loop)
    assert "1" == mapped.peek_next_key()
    entries.store_closed()
    for step in (mapped.has_next, lambda: next(loop), lambda: next(mapped)):
        with pytest.raises(InvalidStateStore):
            step()


@pytest.mark.parametrize("end", [StoreIterator.close, StoreIterator.store_closed])
def test_a_piece_that_is_read_while_another_thread_closes_is_not_given(
    end: Callable[[StoreIterator[int, str]], None],
) -> None:
    def pieces():  # type: ignore[no-untyped-def]
        yield ENTRIES[:3]
        end(entries)
        yield ENTRIES[3:6]

    entries: StoreIterator[int, str] = StoreIterator(pieces())
    loop = iter(entries)
    assert ENTRIES[:3] == [next(loop) for _ in range(3)]
    with pytest.raises(InvalidStateStore):
        next(loop)


def test_iterators_that_nobody_holds_are_forgotten() -> None:
    open_ones = OpenIterators()
    held = [opened() for _ in range(3)]
    for entries in held:
        open_ones.add(entries)
    for _ in range(10_000):
        open_ones.add(opened())
    gc.collect()
    assert len(open_ones._known) < 5000
    open_ones.store_closed()
    for entries in held:
        with pytest.raises(InvalidStateStore):
            next(entries)
