"""JSON of columns is what it says of each row, whole numbers of any size among it."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.engine.jsontext import json_objects, json_texts

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


def test_texts_are_escaped_as_jackson_escapes_them() -> None:
    short = dict(zip('\b\f\n\r\t"\\', 'bfnrt"\\', strict=True))
    for char in map(chr, range(0x80)):
        written = f"\\{short[char]}" if char in short else f"\\u{ord(char):04X}" if char < " " else char
        column = pa.array(["cut", None, f"ü{char}", "", char * 3, "plain"]).slice(1)
        expected = [None, f'"ü{written}"', '""', f'"{written * 3}"', '"plain"']
        assert expected == json_texts(column).to_pylist()
