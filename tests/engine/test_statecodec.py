"""States survive encoding, whatever their types, lengths and nulls."""

from __future__ import annotations

import datetime
import struct
import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.engine.statecodec import StateCodec
from statestore.errors import DataCorrupted, FormatUnsupported

VALUES = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=12),
    pa.binary(): st.binary(max_size=12),
    pa.decimal128(20, 4): st.integers(-(10**18), 10**18).map(lambda n: Decimal(n).scaleb(-4)),
    pa.date32(): st.dates(datetime.date(1900, 1, 1)),
}
STRUCT = pa.struct([("a", pa.float64()), ("b", pa.binary())])
VALUES |= {
    pa.list_(STRUCT): st.lists(
        st.none() | st.fixed_dictionaries({"a": VALUES[pa.float64()], "b": st.none()}), max_size=3
    ),
    STRUCT: st.fixed_dictionaries({"a": st.none(), "b": VALUES[pa.binary()]}),
    pa.map_(pa.string(), pa.decimal128(20, 4)): st.dictionaries(
        VALUES[pa.string()], st.none() | VALUES[pa.decimal128(20, 4)], max_size=3
    ).map(lambda found: list(found.items())),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[pa.DataType], list[list]]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=10))
    count = draw(st.integers(0, 6))
    columns = [draw(st.lists(st.none() | VALUES[t], min_size=count, max_size=count)) for t in types]
    return types, columns


@settings(max_examples=300, deadline=None)
@given(tables(), st.data())
def test_decode_inverts_encode_in_any_order_and_with_gaps(table: tuple, data: st.DataObject) -> None:
    types, columns = table
    codec = StateCodec(types)
    count = len(columns[0])
    times = list(range(count))
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    states = codec.encode(pa.array(times, pa.int64()), arrays).to_pylist()
    picks = data.draw(st.lists(st.none() | st.integers(0, count - 1) if count else st.none(), max_size=8))
    found_times, found = codec.decode(pa.array([None if p is None else states[p] for p in picks], pa.binary()))
    assert [None if p is None else times[p] for p in picks] == found_times.to_pylist()
    for column, array in zip(columns, found, strict=True):
        assert [None if p is None else column[p] for p in picks] == array.to_pylist()


def test_the_layout_is_the_documented_one() -> None:
    codec = StateCodec([pa.int64(), pa.string(), pa.int32()])
    (state,) = codec.encode(
        pa.array([1], pa.int64()), [pa.array([-2]), pa.array(["ab"]), pa.array([None], pa.int32())]
    ).to_pylist()
    expected = "00000000000000010104fffffffffffffffe00000000000000026162"
    assert expected == state.hex()


ROWS = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(max_size=300),
    st.none() | VALUES[pa.int64()],
    st.none() | st.binary(max_size=9),
)


def by_hand(time: int, text: str | None, number: int | None, data: bytes | None) -> bytes:
    """A state as the documentation says."""
    nulls = sum((value is None) << bit for bit, value in enumerate((text, number, data)))
    contents = [(text or "").encode(), data or b""]
    lengths = [len(content) for content in contents]
    return struct.pack(">qBBqII", time, 1, nulls, number or 0, *lengths) + b"".join(contents)


@settings(max_examples=300, deadline=None)
@given(st.lists(ROWS, max_size=40), st.integers(0, 3))
def test_every_state_is_what_the_layout_says(rows: list[tuple], skipped: int) -> None:
    codec = StateCodec([pa.string(), pa.int64(), pa.binary()])
    columns = zip(*rows, strict=True) if rows else [[], [], [], []]
    kinds = (pa.int64(), *codec.types)
    times, *arrays = (pa.array(column, kind).slice(skipped) for column, kind in zip(columns, kinds, strict=True))
    assert [by_hand(*row) for row in rows[skipped:]] == codec.encode(times, arrays).to_pylist()


MEMORY = """
import resource
import numpy as np, pyarrow as pa
from pipelines.engine.statecodec import StateCodec

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

count, width = 5_000, 10_000
codec, times = StateCodec([pa.string()]), pa.array(np.ones(count, np.int64))
ends, data = np.arange(count + 1, dtype=np.int32) * width, np.full(count * width, 120, np.uint8)
column = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
codec.decode(codec.encode(times[:10], [column[:10]]))
before = peak()
states = codec.encode(times, [column])
_, (found,) = codec.decode(states)
assert found.equals(column)
print((peak() - before) / data.nbytes)
"""


def test_coding_holds_the_states_and_the_columns_and_little_else() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) < 3


@pytest.mark.parametrize("size", [0, 12, 25, 26, 28])
def test_a_state_that_is_shorter_than_it_says_is_told(size: int) -> None:
    codec = StateCodec([pa.int64(), pa.string(), pa.int32()])
    (state,) = codec.encode(pa.array([1]), [pa.array([2]), pa.array(["abc"]), pa.array([3], pa.int32())]).to_pylist()
    for states in ([state[:size]], [state, state[:size]], [state[:size], state]):
        with pytest.raises(DataCorrupted):
            codec.decode(pa.array(states, pa.binary()))


def test_another_format_is_refused() -> None:
    codec = StateCodec([pa.int64()])
    state = bytearray(codec.encode(pa.array([1], pa.int64()), [pa.array([2])])[0].as_py())
    state[8] = 9
    with pytest.raises(FormatUnsupported):
        codec.decode(pa.array([bytes(state)], pa.binary()))


def test_a_slice_encodes_its_own_rows() -> None:
    codec = StateCodec([pa.int64(), pa.string()])
    numbers, texts = pa.array([1, None, 3]), pa.array(["a", "bb", None])
    whole = codec.encode(pa.array([7, 8, 9]), [numbers, texts])
    part = codec.encode(pa.array([7, 8, 9]).slice(1), [numbers.slice(1), texts.slice(1)])
    assert whole.to_pylist()[1:] == part.to_pylist()
