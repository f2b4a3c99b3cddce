"""What an attempt stages: changes and results in the order of their rows, whatever batches they came in."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.batches import Order
from statestore.columns import Timed
from statestore.errors import InvalidInput
from statestore.layouts import timestamped
from statestore.staging import EMIT_NOTHING, EMIT_TOMBSTONE, EMIT_VALUE, SCHEMA, Staged

STREAM_TIME_MS = 99
DEAD = json.dumps({"reason": "bad", "topic": "t", "partition": 0, "offset": 1, "timestamp_ms": 5})


class Row(NamedTuple):
    key: bytes | None
    state: bytes | None
    time_ms: int
    emit: int
    value: bytes | None
    dead: str | None


STATES = st.none() | st.just(b"") | st.binary(max_size=3).map(lambda data: b"\0" * timestamped.SIZE + data)
LIVE = st.builds(
    Row,
    st.sampled_from([b"a", b"b", b"expired", b"expired too", b""]),
    STATES,
    st.integers(1, 9),
    st.sampled_from([EMIT_NOTHING, EMIT_VALUE]),
    st.none() | st.binary(max_size=2),
    st.none(),
)
TOMBSTONES = st.just(Row(b"a", None, 3, EMIT_TOMBSTONE, None, None))
DEAD_LETTERS = st.just(Row(None, None, 5, EMIT_NOTHING, None, DEAD))
BATCHES = st.lists(st.lists(LIVE | TOMBSTONES | DEAD_LETTERS, max_size=4), max_size=5)


def is_live(key: bytes) -> bool:
    return not key.startswith(b"expired")


def staged_of(batches: list[list[Row]]) -> Staged:
    staged = Staged(0, 1, 2, Order(STREAM_TIME_MS, 0))
    for rows in batches:
        staged.add(pa.RecordBatch.from_pylist([row._asdict() for row in rows], schema=SCHEMA))
    return staged


def timed(batches: list[pa.RecordBatch]) -> list[Timed]:
    # The last row of the last batch is the one whose offset is waited for.
    assert all(len(batch) for batch in batches)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@given(BATCHES, st.booleans())
def test_rows_are_taken_apart_in_their_order(batches: list[list[Row]], expires: bool) -> None:
    staged = staged_of(batches)
    rows = [row for batch in batches for row in batch]
    assert staged.rows == len(rows)
    assert len(staged.dead) == sum(row.dead is not None for row in rows)
    assert timed(staged.outputs) == [(row.key, row.value, row.time_ms) for row in rows if row.emit != EMIT_NOTHING]
    expected: list[Timed] = [
        (row.key, row.state or None, row.time_ms) for row in rows if row.dead is None and row.state is not None
    ]
    if expires:
        staged.keep(lambda keys: np.array([is_live(key) for key in keys.to_pylist()], np.bool_))
        staged.expired = [b"expired", b"expired too"]
        expected = [change for change in expected if is_live(change[0] or b"")]
    assert [(key, state) for key, state, _ in expected] == list(zip(staged.keys, staged.states, strict=True))
    gone: list[Timed] = [(key, None, STREAM_TIME_MS) for key in staged.expired]
    assert timed(list(staged.changelog())) == expected + gone
    assert staged.keys == staged.key_column.to_pylist()
    assert staged.changes == len(expected + gone)
    newest = dict(zip(staged.keys, staged.states, strict=True))
    columns = staged.changed_columns(len(newest))
    pairs = [pair for keys, states in columns for pair in zip(keys.to_pylist(), states.to_pylist(), strict=True)]
    assert sorted(newest.items()) == sorted(pairs), "each key once, with its last state"


def test_a_dead_letter_without_an_origin_is_refused() -> None:
    with pytest.raises(InvalidInput, match="dead letter has no origin reason=`bad`"):
        staged_of([[Row(None, None, 5, EMIT_NOTHING, None, json.dumps({"reason": "bad"}))]])
