"""JSON of columns is what it says of each row, whole numbers of any size among it."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.engine.jsontext import json_objects

ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.integers(-(2**31), 2**31 - 1),
        st.none() | st.text(max_size=5),
        st.none() | st.booleans(),
    ),
    min_size=1,
)
NAMES = ("n", 'quoted "n"', "t", "ü")
KINDS = (pa.int64(), pa.int32(), pa.string(), pa.bool_())


@settings(deadline=None)
@given(ROWS)
@example([(-(2**63), -(2**31), "", True), (2**63 - 1, 0, None, None), (9, 10, '"', False), (-9, -10, "\n", None)])
def test_objects_say_what_the_columns_say(rows: list[tuple[object, ...]]) -> None:
    # Slices: a column that READ gives need not begin at 0.
    columns = [
        pa.array([None, *column], kind).slice(1) for column, kind in zip(zip(*rows, strict=True), KINDS, strict=True)
    ]
    expected = [dict(zip(NAMES, row, strict=True)) for row in rows]
    found = [json.loads(text) for text in json_objects(list(zip(NAMES, columns, strict=True))).to_pylist()]
    assert expected == found
