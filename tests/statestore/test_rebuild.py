"""Changes loaded as sorted files give what the same changes give written one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.columns import Columns, Entries, column
from statestore.config import RocksConfig, StoreSpec
from statestore.kafka.reader import Record
from statestore.load import gathered
from statestore.placement import Placement
from statestore.rebuild import stored_entries as stored_columns
from statestore.recovery import stored_entries
from statestore.rocks import files
from statestore.rocks.database import Database
from statestore.sortedrows import last_in_order
from statestore.version import Checkpoint, TaskDatabase

CONFIG = RocksConfig(write_buffer_bytes=64 * 1024, block_cache_bytes=1024 * 1024)
HOUR_MS = 3_600_000
Change = tuple[bytes, bytes | None]


def stored_window(key: bytes, start_ms: int) -> bytes:
    return key + start_ms.to_bytes(8, "big") + bytes(4)


# Few keys, so that most come again; some begin others, some end in zeros, some are of one width.
plain_keys = st.one_of(
    st.sampled_from([b"", b"a", b"a\0", b"a\0\0", b"b", b"\xff", b"\xff\xff"]),
    st.binary(min_size=2, max_size=2),
    st.sampled_from([b"%09d" % number for number in range(20)]),
    st.binary(min_size=65, max_size=70),
)
window_keys = st.builds(stored_window, st.sampled_from([b"a", b"ab", b"b"]), st.integers(0, 12 * HOUR_MS))
values = st.one_of(st.none(), st.binary(max_size=20))
STORES = {
    "plain": (StoreSpec("s", "t", "id"), plain_keys),
    "one-width": (StoreSpec("s", "t", "id"), st.binary(min_size=3, max_size=3)),
    "windowed": (StoreSpec("s", "t", "id", retention_ms=HOUR_MS), window_keys),
}


@settings(deadline=None)
@given(st.lists(st.one_of(plain_keys, window_keys)))
def test_the_last_of_each_key_comes_in_the_order_of_the_keys(keys: list[bytes]) -> None:
    last = {key: row for row, key in enumerate(keys)}
    assert [last[key] for key in sorted(last)] == last_in_order(column(keys)).tolist()


@settings(deadline=None)
@given(st.integers(1, 20).flatmap(lambda width: st.lists(st.binary(min_size=width, max_size=width), max_size=40)))
def test_keys_of_one_width_are_ordered_likewise(keys: list[bytes]) -> None:
    last = {key: row for row, key in enumerate(keys)}
    assert [last[key] for key in sorted(last)] == last_in_order(column(keys)).tolist()


def content(database: Database) -> dict[str, list[tuple[bytes, bytes]]]:
    """Every space with its entries, in both directions."""
    found = {space: list(database.scan(space)) for space in database.spaces() if space != "checkpoint"}
    assert found == {space: list(database.scan(space, reverse=True))[::-1] for space in found}
    return {space: entries for space, entries in found.items() if entries}


def records_of(changes: list[Change]) -> list[Record]:
    return [Record(key, value, row, 1_000 + row) for row, (key, value) in enumerate(changes)]


def columns_of(records: list[Record], size: int) -> Iterator[Columns]:
    for start in range(0, len(records), size):
        part = records[start : start + size]
        yield Columns.of(
            [r.key for r in part], [r.value for r in part], [r.timestamp_ms for r in part], part[-1].offset + 1
        )


@pytest.mark.parametrize("kind", STORES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_loaded_changes_equal_written_ones(kind: str, data: st.DataObject) -> None:
    spec, keys = STORES[kind]
    records = records_of(data.draw(st.lists(st.tuples(keys, values), max_size=60)))
    chunk, bytes_max = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 400))
    placement, space = Placement(spec), Placement(spec).space(stored_window(b"", 0))
    with TemporaryDirectory() as name:
        written = Database(Path(name, "written"), [space], CONFIG)
        loaded = TaskDatabase(Path(name, "loaded"), [space], CONFIG)
        written.write(placement.placed(stored_entries(records)))
        pieces = list(gathered(columns_of(records, chunk), bytes_max))
        for piece in pieces:
            for place, columns in placement.placed_columns(stored_columns(piece)).items():
                loaded.database.load(place, columns)
        assert len(records) == (pieces[-1].end if pieces else 0) == sum(map(len, pieces))
        assert content(written) == content(loaded.database)
        # The checkpoint comes last, and then the folder is what any other process may open.
        place, entries = loaded.entries(Checkpoint(3))
        loaded.database.write({place: entries}, sync=True)
        loaded.database.flush()
        loaded.close()
        assert "" == files.problem(Path(name, "loaded"))
        again = TaskDatabase(Path(name, "loaded"), [space], CONFIG)
        checkpoint = again.checkpoint()
        assert checkpoint is not None and 3 == checkpoint.batch
        assert content(written) == content(again.database)
        # What is written later wins.
        again.database.write(
            {place: [(key, b"later") for key, _ in found] for place, found in content(written).items()}
        )
        assert {b"later"} >= {value for found in content(again.database).values() for _, value in found}
        again.close()
        written.close()


def test_files_that_overlap_are_compacted_into_the_newest_of_each_key(tmp_path: Path) -> None:
    database = Database(tmp_path, ["s"], CONFIG)
    expected: dict[bytes, bytes] = {}
    for number in range(40):
        keys = [b"%04d" % ((number * 37 + row * 7) % 1000) for row in range(100)]
        found: list[bytes | None] = [None if (row + number) % 5 == 0 else b"%d" % number for row in range(100)]
        database.load("s", Entries(column(keys), column(found)))
        for key, value in zip(keys, found, strict=True):
            expected.pop(key, None) if value is None else expected.update({key: value})
    assert sorted(expected.items()) == list(database.scan("s"))
    assert [expected.get(b"%04d" % n) for n in range(1000)] == database.get_many(
        "s", [b"%04d" % n for n in range(1000)]
    )
    database.close()
    assert ["CURRENT"] == [path.name for path in tmp_path.iterdir() if path.name in ("CURRENT", "loading")]
