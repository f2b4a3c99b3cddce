"""Decoding: every record becomes its row or its reason, whatever its neighbours are."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cache
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.engine.blockvalues import NULL_VALUE, BlockValues
from pipelines.engine.decode import decoder
from pipelines.engine.jsonnames import Names
from pipelines.engine.records import GivenRecords
from pipelines.engine.values import DEPTH_MAX, value_reader
from pipelines.engine.windowed_keys import join_key
from pipelines.plan import Column, Source

SOURCE = Source(
    "S",
    "s",
    "json",
    (
        Column("ID", "id", "bigint", key=True),
        Column("A", "a", "bigint"),
        Column("NAME", "theName", "string"),
        Column("X", "x", "double"),
        Column("OK", "ok", "boolean"),
    ),
)


def records(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> GivenRecords:
    count = len(values)
    return GivenRecords(
        partition=3,
        keys=pa.array(keys or [None] * count, pa.binary()),
        values=pa.array(values, pa.binary()),
        offsets=pa.array(range(count), pa.int64()),
        times=pa.array([5] * count, pa.int64()),
    )


def decode(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None, raw_if_null: tuple[str, ...] | None = ()
) -> list[dict]:
    counted: list[tuple[int, ...]] = []
    (rows,) = decoder(SOURCE, raw_if_null, lambda *counts: counted.append(counts))([records(values, keys)])
    found = rows.to_pylist()
    dead, present = sum(row["__error"] is not None for row in found), [value for value in values if value is not None]
    assert [(len(values), dead, len(present), sum(map(len, present)))] == counted
    return found


def test_fields_become_columns_and_missing_ones_null() -> None:
    (row,) = decode([b'{"a":1,"theName":"n","x":1.5,"ok":true,"other":[1]}'])
    assert (1, "n", 1.5, True, 5, None) == (row["A"], row["NAME"], row["X"], row["OK"], row["ROWTIME"], row["__error"])
    (row,) = decode([b"{}"])
    assert (None, None, None, None) == (row["A"], row["NAME"], row["X"], row["OK"])


@pytest.mark.parametrize("name", ["theName", "thename", "THENAME"])
def test_a_field_is_found_as_written_in_lower_and_in_upper_case(name: str) -> None:
    rows = decode([json.dumps({name: "n"}).encode(), b'{"theName":"other"}'])
    assert ["n", "other"] == [row["NAME"] for row in rows]


SPELLINGS = ["theName", "thename", "THENAME", "THEname", "TheName", "thenamE"]
OBJECTS = st.dictionaries(st.sampled_from(SPELLINGS), st.none() | st.sampled_from(["n", "theName", "THEname"]))


@settings(deadline=None)
@given(st.lists(OBJECTS, min_size=1, max_size=6), st.booleans(), st.sampled_from([1, 200]))
def test_a_field_is_found_in_any_case(objects: list[dict[str, str | None]], others: bool, times: int) -> None:
    extra = {"More": {"thename": 1}} if others else {}
    rows = decode([json.dumps(each | extra).encode() for each in objects] * times)
    # As written, in lower case, in upper case, and then whatever else there is.
    given = [[each.get(name) for name in (*SPELLINGS[:3], *sorted(SPELLINGS[3:]))] for each in objects]
    expected = [next((value for value in values if value is not None), None) for values in given]
    assert [(value, None) for value in expected * times] == [(row["NAME"], row["__error"]) for row in rows]


def test_a_block_whose_records_spell_a_field_in_every_way_is_read() -> None:
    names = ["".join(letters) for letters in product(*zip("thenam", "THENAM", strict=True))]
    rows = decode([b'{"%sE":"%d"}' % (name.encode(), number) for number, name in enumerate(names)])
    assert [str(number) for number in range(64)] == [row["NAME"] for row in rows]


def test_null_values_stand_between_others() -> None:
    values = [None, b'{"a":1}', None, b"bad", b'{"a":2}', None]
    rows = decode(values, [b"k" * 8] * 5 + [b"k"])
    assert [None, 1, None, None, 2, None] == [row["A"] for row in rows]
    reasons = [row["__error"] for row in rows]
    assert [NULL_VALUE, None, NULL_VALUE, None] == [reasons[row] for row in (0, 1, 2, 4)]
    # Of a record whose key is bad as well, nothing but a dead letter says what it was.
    assert all(reason not in (None, NULL_VALUE) for reason in (reasons[3], reasons[5]))


def test_blocks_may_spell_fields_differently_and_have_others() -> None:
    blocks = [
        [b'{"theName":"0","a":0}', b'{"theName":"1"}'],
        [b'{"theName":"2","a":2}', b'{"other":{},"THENAME":"3","A":3}'],
        [b'{"thename":"4"}', b"bad"],
        [b'{"theName":"6","a":7}', b'{"a":"7"}'],
    ]
    decoded = decoder(SOURCE, (), lambda *_: None)(records(list(block)) for block in blocks)
    rows = [row for batch in decoded for row in batch.to_pylist()]
    assert ["0", "1", "2", "3", "4", None, "6", None] == [row["NAME"] for row in rows]
    assert [0, None, 2, 3, None, None, 7, 7] == [row["A"] for row in rows]
    assert [5] == [number for number, row in enumerate(rows) if row["__error"] is not None]


BAD = [
    None,
    b"",
    b"  ",
    b"nonsense",
    b"[1]",
    b"1",
    b'"text"',
    b"\xff\xfe",
    b'{"a":"text"}',
    b'{"a":1.5}',
    b'{"a":1}{"a":2}',
    b'{"a":1} {"a":2}',
    b'{"a":{}',
    b'{"a":1',
    b'{"theName":"open',
    b'"a":1}}',
    b'{"a":1,"a":2}',
    b'{"a":99999999999999999999}',
    b'{"a":1e999999999}',
    b'{"theName":"\\ud83d"}',
    b'{"theName":"\xed\xa0\x80"}',
    b'{"theName":"a line\nbroken"}',
    b'{"theName":"a tab\t"}',
    b'\xc2\xa0{"a":1}',
    b'\x0b{"a":1}',
    '{"a":1}'.encode("utf-16"),
    b'{"a":2,"x":NaN}',
    b'{"a":2,"x":-Infinity}',
    b'{"a":2,"x":Inf}',
    b'{"a":2,"other":{"y": NaN}}',
    b'{"a":2,"other":[1,\tInf]}',
    b'{"a":"1_000"}',
    '{"a":"\uff11"}'.encode(),
    b'{"a":2,"x":"1_0.5"}',
    b'{"a":2,"x":"inf"}',
    b'{"a":2,"x":"-nan"}',
]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_record_is_bad_alone_and_among_many(bad: bytes | None) -> None:
    (alone,) = decode([bad])
    assert (None, True) == (alone["A"], alone["__error"] is not None)
    for good in (b'{"a":1}', b'{"a":1,"x":1.5}'):
        rows = decode([good] * 400 + [bad] + [good] * 299)
        assert [1] * 400 + [None] + [1] * 299 == [row["A"] for row in rows]
        assert [400] == [number for number, row in enumerate(rows) if row["__error"] is not None]


@pytest.mark.parametrize("constant", ["NaN", "Inf", "Infinity", "-Inf", "-NaN"])
@pytest.mark.parametrize("white", ["", " ", "\t", "\n", "\r", "\r\n "])
def test_a_constant_is_found_wherever_it_may_stand(constant: str, white: str) -> None:
    rest = f"{white}{constant}{white}"
    bad = [
        f'{{"a":2,"x":{rest}}}',
        f'{{"o":[{rest}],"a":2}}',
        f'{{"o":[1,{rest}],"a":2}}',
        f'{{"o":{{"p":{rest}}},"a":2}}',
    ]
    rows = decode([one.encode() for one in ['{"a":1}', *bad, '{"a":3}']])
    assert [1, *[None] * len(bad), 3] == [row["A"] for row in rows]
    assert [False, *[True] * len(bad), False] == [row["__error"] is not None for row in rows]


def test_texts_that_begin_as_a_constant_does_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.engine.jsonfields._WITH_CONSTANT", "takes every one|")
    rows = decode([b'{"a":1,"theName":"Info","x":1.5}', b'{"a":2,"theName":"NaNo, myInfo", "x": 2.5}'])
    assert [(1, "Info", 1.5), (2, "NaNo, myInfo", 2.5)] == [(row["A"], row["NAME"], row["X"]) for row in rows]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_record_is_told_from_its_neighbours(bad: bytes | None) -> None:
    rows = decode([b'{"a":1}', bad, b'{"a":3}'])
    assert [1, None, 3] == [row["A"] for row in rows]
    assert [False, True, False] == [row["__error"] is not None for row in rows]
    assert {"topic": "s", "partition": 3, "offset": 1, "timestamp_ms": 5, "key": None, "value": bad} == rows[1]["__raw"]
    assert rows[0]["__raw"] is None


@pytest.mark.parametrize(
    "text", [b'{"a":\n1}', b' {"a":1}\n', b'{\r\n"a":1\r\n}', b'{"a":1}\t', b'\xef\xbb\xbf{"a":1}']
)
def test_white_space_of_json_is_allowed(text: bytes) -> None:
    rows = decode([text, b'{"a":2}'])
    assert [(1, None), (2, None)] == [(row["A"], row["__error"]) for row in rows]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.integers(-(2**40), 2**40), st.sampled_from(BAD)), max_size=40))
def test_any_mixture_decodes_record_by_record(mixture: list) -> None:
    values = [b'{"a":%d}' % item if isinstance(item, int) else item for item in mixture]
    if not values:
        return
    rows = decode(values)
    expected = [(item, False) if isinstance(item, int) else (None, True) for item in mixture]
    assert expected == [(row["A"], row["__error"] is not None) for row in rows]


FIELDS = st.sampled_from(
    [
        *("a", "A", "theName", "thename", "thenamE", "x", "X", "ok", "oK", "zz", "zZ", "ſ"),
        *(r"\u0061", r"thena\u006de", r"\"a"),
    ]
)
ODD = [
    "-0",
    '{"a":1,"A":2,"A":3}',
    "1" + "0" * 400,
    "-1" + "0" * 5_000,
    "[" * 499 + "]" * 499,
    "[" * 500 + "]" * 500,
    '"%s"' % ("{[" * 600),
    "1",
    "-7",
    "0",
    "1.0",
    "1.5",
    "1e3",
    "1E400",
    "9223372036854775807",
    "9223372036854775808",
    "true",
    "false",
    "null",
    '"1"',
    '"1_000"',
    '"NaN"',
    '"nan"',
    '"Infinity"',
    '"true"',
    '"NaN,"',
    '":NaN"',
    "{}",
    "[]",
    "[1,2]",
    '{"y":1}',
    "01",
    "+1",
    ".5",
    "5.",
    "NaN",
    "-NaN",
    "Infinity",
    "-Infinity",
    "Inf",
    "[NaN]",
    '{"y":-Inf}',
    '"\\"Inf"',
    '"１"',
    "0.1",
]


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    fields = draw(st.lists(st.tuples(FIELDS, st.sampled_from(ODD)), max_size=4))
    rest = draw(st.none() | st.sampled_from(ODD))
    space = draw(st.sampled_from(["", " ", "\t"]))
    pairs = [f'"{name}"{space}:{space}{value}' for name, value in [*fields, *([("zz", rest)] if rest else [])]]
    return ("{" + f",{space}".join(pairs) + "}").encode()


def read_alone(source: Source, values: list[bytes]) -> list[tuple[str | None, str | None]]:
    """Of each value the row or the reason, whatever others there are."""
    read = value_reader(source, [column for column in source.columns if not column.key])

    @cache
    def alone(value: bytes) -> tuple[str | None, str | None]:
        try:
            return repr(read(value)), None
        except (ValueError, ArithmeticError) as error:
            return None, f"value does not fit the columns: {error}"

    return [alone(value) for value in values]


def read_in_blocks(source: Source, blocks: list[list[bytes]]) -> list[list[tuple[str | None, str | None]]]:
    """The same by one decoder that reads block after block."""
    names = [column.name for column in source.columns if not column.key]
    decoded = decoder(source, (), lambda *_: None)(records(block) for block in blocks)
    return [
        [(None if row["__error"] else repr([row[name] for name in names]), row["__error"]) for row in batch.to_pylist()]
        for batch in decoded
    ]


PLAIN = [b'{"a":1,"theName":"n"}', b'{"a":1,"theName":"n","other":{"a":1,"A":2}}']
WITH_DECIMAL = replace(SOURCE, columns=(*SOURCE.columns, Column("M", "m", "decimal(9,2)")))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(objects(), min_size=1, max_size=12), min_size=1, max_size=3),
    st.sampled_from([0, 700]),
    st.sampled_from(PLAIN),
    st.sampled_from([SOURCE, WITH_DECIMAL]),
)
def test_a_record_is_read_as_alone_whatever_is_read_with_it_and_before(
    blocks: list[list[bytes]], times: int, plain: bytes, source: Source
) -> None:
    blocks = [[*block, *[plain] * times] for block in blocks]
    assert [read_alone(source, block) for block in blocks] == read_in_blocks(source, blocks)


AMOUNT = Source("S", "s", "json", (Column("AMOUNT", "amount", "bigint"), Column("K", "k", "string")))


@pytest.mark.parametrize("times", [1, 700])
@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (b'{"aMount":2,"Amount":1,"k":"x"}', 1),
        (b'{"aMount":2,"amount":1,"k":"x"}', 1),
        (b'{"aMount":2,"amount":null,"k":"x"}', 2),
        (b'{"\\u0061Mount":2,"k":"x"}', 2),
        (b'{"aMount":2,"other":{"Amount":1}}', 2),
        (b'{"aMount":2,"other":1,"other":2}', 2),
    ],
)
def test_what_a_field_was_called_before_changes_nothing(value: bytes, amount: int, times: int) -> None:
    spellings = ["".join(letters) + "nt" for letters in product(*zip("amou", "AMOU", strict=True))]
    given = [[b'{"%s":7,"k":"x"}' % name.encode()] * times for name in ["aMount", *spellings]]
    # The first block makes one spelling known, all of them are more than are kept.
    for before in ([], given[:1], given):
        row = read_in_blocks(AMOUNT, [*before, [value] * times])[-1][-1]
        assert row == (repr([amount, "x" if b'"k"' in value else None]), None)


@pytest.mark.parametrize("times", [1, 200])
def test_why_a_record_is_bad_does_not_depend_on_what_was_read_before(times: int) -> None:
    bad = [b'{"amount":1,"aMount":2,"aMount":3}', b'{"aMount":"x"}', b'{"aMount":1,"x":NaN}']
    for before in ([], [[b'{"aMount":7}']]):
        assert read_in_blocks(AMOUNT, [*before, bad * times])[-1] == read_alone(AMOUNT, bad * times)


GERMAN = Source(
    "S", "s", "json", (Column("A", "straße", "bigint"), Column("B", "größe", "bigint"), Column("C", "summe", "bigint"))
)
GERMAN_FIELDS = st.sampled_from(
    [
        "straße",
        "STRASSE",
        "Strasse",
        "StrassE",
        "STRAßE",
        "STRAẞE",
        "größe",
        "Größe",
        "GRÖSSE",
        "summe",
        "ſumme",
        "Summe",
        "süße",
        "ß",
    ]
)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.dictionaries(GERMAN_FIELDS, st.integers(0, 9), max_size=4), min_size=1, max_size=6), min_size=1
    ),
    st.booleans(),
    st.sampled_from([0, 700]),
    st.sampled_from(
        [
            GERMAN,
            replace(GERMAN, columns=GERMAN.columns[2:]),
            # Its lower case is straße, which is another name.
            replace(GERMAN, columns=(Column("A", "STRAẞE", "bigint"),)),
        ]
    ),
)
def test_the_case_of_other_letters_is_that_of_one_record_alone(
    blocks: list[list[dict[str, int]]], ascii_: bool, times: int, source: Source
) -> None:
    extra = [b'{"summe":1,"other":2}'] * times
    texts = [[*(json.dumps(each, ensure_ascii=ascii_).encode() for each in block), *extra] for block in blocks]
    assert [read_alone(source, block) for block in texts] == read_in_blocks(source, texts)


SIZE = Source("S", "s", "json", (Column("SIZE", "größe", "bigint"), Column("K", "k", "string")))


@pytest.mark.parametrize(
    ("source", "record"),
    [
        (SIZE, '{"größe":1,"k":"x","länge":2}'),
        (SIZE, '{"GRÖSSE":1,"k":"x","länge":2,"länge":3}'),
        (SIZE, '{"Größe":1,"k":"x","LÄNGE":2}'),
        # These spellings are learnt.
        (SIZE, '{"GRÖßE":1,"k":"x","länge":2}'),
        (SIZE, '{"GrÖSSE":1,"k":"x"}'),
        (SIZE, r'{"gr\u00f6\u00dfe":1,"k":"x","l\u00e4nge":2}'),
        (AMOUNT, '{"amount":1,"k":"Hauptstraße","länge":2}'),
        (AMOUNT, '{"amount":1,"k":"ılık","açıklama":2}'),
        (AMOUNT, r'{"amount":1,"k":"ß","l\u00e4nge":2,"a\"b":3}'),
        (AMOUNT, '{"Amount":1,"k":"ſ","ß":2}'),
        (SOURCE, '{"a":1,"theName":"ß","ß":2}'),
    ],
)
def test_fields_that_are_no_columns_may_have_any_letters_and_no_record_is_read_alone_for_them(
    source: Source, record: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: list[int] = []
    singly = BlockValues._singly

    def counts(reader: BlockValues, values: pa.BinaryArray, *others: Any) -> None:
        alone.append(len(values))
        singly(reader, values, *others)

    monkeypatch.setattr(BlockValues, "_singly", counts)
    block = [record.encode()] * 700
    assert [read_alone(source, block)] == read_in_blocks(source, [block])
    assert [] == alone


@pytest.mark.parametrize("room", [1, 1_000, 65_536])
def test_a_block_may_have_more_names_of_any_letters_than_are_kept(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.engine.jsonscan._UNTOLD_MAX", room)
    asked: list[int] = []
    columns_of = Names._columns_of

    def asks(names: Names, written: list[bytes], **others: Any) -> list[int]:
        asked.append(len(written))
        return columns_of(names, written, **others)

    monkeypatch.setattr(Names, "_columns_of", asks)
    fields = [
        '"ä%d":1,"größe":%d',
        '"GRÖßE":1,"ü%d":%d',
        '"k":"%d","GRöSSE":1,"Größe":%d',
        '"länge":%d,"gr\\u00f6ßE":%d',
    ]
    block = [("{" + fields[row % 4] % (row, row) + "}").encode() for row in range(6_000)]
    assert [read_alone(SIZE, block)] == read_in_blocks(SIZE, [block])
    assert min(room, 3_000) <= max(asked) <= room


def test_a_field_of_two_columns_is_read_as_alone() -> None:
    source = Source("S", "s", "json", (Column("a", "a", "bigint"), Column("A", "A", "bigint")))
    values = [b'{"a":1}', b'{"A":1}', b'{"a":null,"A":1}', b'{"a":2,"A":1}']
    for times in (1, 700):
        assert [read_alone(source, values * times)] == read_in_blocks(source, [values * times])


def nested(levels: int, name: str) -> bytes:
    """A record of so many levels, itself the first."""
    return b'{"%s":' % name.encode() + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def with_stack_left(frames: int, work: Callable[[], Any]) -> Any:
    """What comes of work that may call so many functions, one in the other."""

    def deeper(calls: int) -> Any:
        return work() if calls <= 0 else deeper(calls - 1)

    return deeper(sys.getrecursionlimit() - len(inspect.stack(0)) - frames)


@pytest.mark.parametrize("frames", [1_000, 200])
@pytest.mark.parametrize("source", [SOURCE, WITH_DECIMAL], ids=["arrow", "decimal"])
@pytest.mark.parametrize("name", ["other", "theName"])
@pytest.mark.parametrize("times", [0, 700])
def test_a_record_may_have_so_many_levels_and_no_more_whoever_calls(
    name: str, source: Source, frames: int, times: int
) -> None:
    limits = [nested(DEPTH_MAX, name), nested(DEPTH_MAX + 1, name), nested(100_000, name)]
    block = [*limits, *[b'{"a":1,"other":[2]}'] * times]
    rows = with_stack_left(frames, lambda: read_in_blocks(source, [block])[0])
    reason = "value does not fit the columns: more than 500 levels of nesting"
    assert [None, reason, reason, *[None] * times] == [why for _, why in rows]


def test_brackets_in_texts_are_no_levels() -> None:
    value = b'{"theName":"%s","other":[1,"\\"%s"]}' % (b"[" * 600, b"{" * 600)
    for times in (1, 700):
        assert [(repr([None, "[" * 600, None, None]), None)] * times == read_in_blocks(SOURCE, [[value] * times])[0]


def test_a_key_is_nested_as_deep_as_a_value() -> None:
    columns = (Column("K", "k", "string", key=True), Column("L", "l", "string", key=True), Column("A", "a", "int"))
    source = Source("S", "s", "json", columns, key_format="json")
    (rows,) = decoder(source, (), lambda *_: None)([records([b"{}"] * 2, [nested(500, "x"), nested(501, "x")])])
    assert [None, "key does not fit column K: more than 500 levels of nesting"] == rows["__error"].to_pylist()


@pytest.mark.parametrize(
    "value", [b'{"theName":{"q":1,"q":2}}', b'{"theName":[{"q":1,"q":2}]}', b'{"zz":1,"A":1,"A":2}']
)
def test_a_doubled_field_that_is_read_is_bad(value: bytes) -> None:
    for source in (SOURCE, WITH_DECIMAL):
        ((_, reason),) = read_in_blocks(source, [[value]])[0]
        assert str(reason).endswith("a field is given twice")


def test_a_number_that_is_too_long_is_no_text() -> None:
    ((_, reason),) = read_in_blocks(SOURCE, [[b'{"theName":[1%s]}' % (b"0" * 4_300)]])[0]
    assert reason == "value does not fit the columns: theName: a number of more than 4300 digits is no STRING"
    assert read_in_blocks(SOURCE, [[b'{"theName":1%s}' % (b"0" * 4_299)]]) == [
        [(repr([None, "1" + "0" * 4299, None, None]), None)]
    ]


def test_words_that_java_knows_are_numbers_and_texts_may_have_them() -> None:
    texts = ["NaN", "-Infinity", "+NaN", "1e999", " 1.5 "]
    rows = decode([b'{"x":"%s","theName":":NaN, Inf"}' % text.encode() for text in texts])
    assert [repr(float(text)) for text in texts] == [repr(row["X"]) for row in rows]
    assert [":NaN, Inf"] * 5 == [row["NAME"] for row in rows]


def test_key_columns_are_big_endian_and_wrong_ones_are_errors() -> None:
    keys = [(7).to_bytes(8, "big"), None, b"abc", (-1).to_bytes(8, "big", signed=True)]
    rows = decode([b"{}"] * 4, keys)
    assert [7, None, None, -1] == [row["ID"] for row in rows]
    assert [False, False, True, False] == [row["__error"] is not None for row in rows]


def test_raw_is_kept_where_a_group_key_may_be_null() -> None:
    rows = decode([b'{"a":1}', b'{"x":1}'], raw_if_null=("A",))
    assert [False, True] == [row["__raw"] is not None for row in rows]
    assert all(row["__raw"] is not None for row in decode([b'{"a":1}'], raw_if_null=None))


MONEY = Source(
    "M",
    "m",
    "json",
    (
        Column("PRICE", "price", "decimal(12,2)"),
        Column("N", "n", "int"),
        Column("X", "x", "double"),
        Column("OK", "ok", "boolean"),
        Column("T", "t", "string"),
    ),
)


def money(values: list[bytes]) -> list[dict]:
    (rows,) = decoder(MONEY, (), lambda *_: None)([records(list(values))])
    return rows.to_pylist()


@pytest.mark.parametrize("price", ["12.34", "12", "-0.1", '"12.34"', "9999999999.99", "1e3"])
def test_decimals_keep_every_digit(price: str) -> None:
    (row,) = money([b'{"price":%s,"n":1,"x":2,"ok":true,"t":"a"}' % price.encode()])
    assert row["__error"] is None
    assert Decimal(price.strip('"')) == row["PRICE"]
    assert (1, 2.0, True, "a") == (row["N"], row["X"], row["OK"], row["T"])


@pytest.mark.parametrize(
    "bad",
    [
        b'{"price":1.234}',
        b'{"price":99999999999}',
        b'{"price":1e999999999}',
        b'{"price":1e-999999999}',
        b'{"price":"1e-999999999"}',
        b'{"price":true}',
        b'{"price":"x"}',
        b'{"price":NaN}',
        b'{"price":1,"n":1.5}',
        b'{"price":1,"n":99999999999}',
        b'{"price":1,"n":true}',
        b'{"price":1,"n":1e999999999}',
        b'{"price":1,"ok":1}',
        b'{"price":1,"price":2}',
        b'{"price":1}{"price":2}',
        b'{"price":1,"other":NaN}',
        b'{"price":"1_0"}',
    ],
)
def test_records_that_do_not_fit_beside_decimals_are_errors(bad: bytes) -> None:
    rows = money([b'{"price":1.5}', bad, b'{"price":2.5}'])
    assert [Decimal("1.50"), None, Decimal("2.50")] == [row["PRICE"] for row in rows]
    assert [False, True, False] == [row["__error"] is not None for row in rows]


def test_a_refused_record_is_bad_for_its_reason_and_hidden_from_every_expression() -> None:
    values = [b'{"a":1}', b'{"a":2}', b'{"a":3}']
    decoded = decoder(SOURCE, (), lambda *_: None, {(3, 1): "division by zero", (0, 2): "of another partition"})
    (rows,) = decoded([records(values, [b"\0" * 8] * 3)])
    first, refused, third = rows.to_pylist()
    assert (1, None, 3, None) == (first["A"], first["__error"], third["A"], third["__error"])
    assert (None, None, "division by zero") == (refused["A"], refused["ID"], refused["__error"])
    assert (1, b'{"a":2}', b"\0" * 8) == (
        refused["__raw"]["offset"],
        refused["__raw"]["value"],
        refused["__raw"]["key"],
    )


def test_a_value_nested_too_deeply_is_bad_and_no_more() -> None:
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    (rows,) = decoder(MONEY, (), lambda *_: None)([records([deep, b"{}"])])
    assert [True, False] == [row["__error"] is not None for row in rows.to_pylist()]


TYPES = Source(
    "S",
    "s",
    "json",
    (
        Column("K", "k", "string", key=True),
        Column("A", "a", "array<int>"),
        Column("M", "m", "map<string,double>"),
        Column("P", "p", "struct<`X`:int,`Y`:string>"),
        Column("T", "t", "timestamp"),
        Column("B", "b", "bytes"),
    ),
)


def test_nested_values_and_texts_of_numbers_are_read_as_their_types() -> None:
    value = b'{"A":["1",2,null],"m":{"q":1},"P":{"x":1.0,"y":{"z":true}},"t":5,"b":"YWI="}'
    (rows,) = decoder(TYPES, (), lambda *_: None)([records([value, b'{"a":1}', b"{}"], [b"k"] * 3)])
    good, bad, empty = rows.to_pylist()
    assert ([1, 2, None], [("q", 1.0)], {"X": 1, "Y": '{"z":true}'}, 5, b"ab") == tuple(good[n] for n in "AMPTB")
    assert bad["__error"] is not None
    assert [None] * 6 == [empty[name] for name in ("A", "M", "P", "T", "B", "__error")]


def delimited(values: list[bytes], delimiter: str = ",", **other: Any) -> list[dict]:
    columns = (Column("A", "a", "int"), Column("B", "b", "string"), Column("D", "d", "decimal(4,2)"))
    source = Source("S", "s", "delimited", columns, value_delimiter=delimiter, **other)
    (rows,) = decoder(source, (), lambda *_: None)([records(values)])
    return rows.to_pylist()


def test_delimited_values_have_quotes_and_empty_fields_are_null() -> None:
    rows = delimited([b'1,"x,""y""",1.5', b",,", b"1,x", b"z,x,1"])
    assert [(1, 'x,"y"', Decimal("1.50")), (None,) * 3, (None,) * 3, (None,) * 3] == [
        (row["A"], row["B"], row["D"]) for row in rows
    ]
    assert [False, False, True, True] == [row["__error"] is not None for row in rows]
    assert "p" == delimited([b"1|p|2"], "|")[0]["B"]


def test_a_delimited_field_may_be_as_long_as_a_record() -> None:
    (row,) = delimited([b"1," + b"x" * 1_000_000 + b",2"])
    assert (None, "x" * 1_000_000) == (row["__error"], row["B"])


def test_a_timestamp_column_is_the_rows_time_and_a_wrong_one_an_error() -> None:
    rows = delimited([b"1,2020-01-02,1", b"1,then,1"], timestamp="B", timestamp_format="yyyy-MM-dd")
    assert [(1577923200000, False), (5, True)] == [(row["ROWTIME"], row["__error"] is not None) for row in rows]


def test_a_timestamp_column_has_names_of_days_and_a_zone_as_its_offset() -> None:
    pattern = "EEEE dd MMM yyyy HH:mm:ss.SSS XXX"
    rows = delimited([b"1,Thursday 02 Jan 2020 01:00:00.250 +01:00,1"], timestamp="B", timestamp_format=pattern)
    assert [(1577923200250, None)] == [(row["ROWTIME"], row["__error"]) for row in rows]


def test_a_timestamp_column_is_cut_off_at_its_millisecond() -> None:
    pattern = "yyyy-MM-dd HH:mm:ss.SSSSSS"
    (row,) = delimited([b"1,2020-01-01 00:59:59.999600,1"], timestamp="B", timestamp_format=pattern)
    assert 1577840399999 == row["ROWTIME"]


@pytest.mark.parametrize(
    ("form", "columns", "key", "expected"),
    [
        ("json", (Column("K", "k", "int", key=True),), b"7", {"K": 7}),
        ("json", (Column("K", "k", "int", key=True), Column("L", "l", "string", key=True)), b'{"l":"x"}', {"L": "x"}),
        ("delimited", (Column("K", "k", "int", key=True), Column("L", "l", "string", key=True)), b"7,x", {"K": 7}),
        ("kafka", (Column("K", "k", "double", key=True),), b"?\xf8" + b"\0" * 6, {"K": 1.5}),
    ],
)
def test_keys_of_other_formats(form: str, columns: tuple[Column, ...], key: bytes, expected: dict) -> None:
    source = Source("S", "s", "json", (*columns, Column("A", "a", "int")), key_format=form)
    (rows,) = decoder(source, (), lambda *_: None)([records([b"{}"], [key])])
    row = rows.to_pylist()[0]
    assert row["__error"] is None
    assert expected.items() <= row.items()


class TestWindowedKeys:
    KEY = Column("K", "k", "int", key=True)

    def rows(self, window_type: str, window_ms: int, raws: list[bytes | None]) -> list[dict]:
        source = Source(
            "W", "w", "json", (self.KEY, Column("N", "n", "int")), window_type=window_type, window_ms=window_ms
        )
        (rows,) = decoder(source, (), lambda *_: None)([records([b"{}"] * len(raws), raws)])
        return rows.to_pylist()

    @pytest.mark.parametrize(
        ("window_type", "window_ms", "suffix"),
        [
            ("hopping", 500, bytes.fromhex("00000000000003e8")),
            ("session", 0, bytes.fromhex("00000000000005dc00000000000003e8")),
        ],
    )
    def test_a_key_ends_with_the_bounds_of_its_window(self, window_type: str, window_ms: int, suffix: bytes) -> None:
        (row, nothing) = self.rows(window_type, window_ms, [bytes([0, 0, 0, 7]) + suffix, None])
        assert (7, 1000, 1500, None) == (row["K"], row["WINDOWSTART"], row["WINDOWEND"], row["__error"])
        assert (None, None, None) == (nothing["K"], nothing["WINDOWSTART"], nothing["WINDOWEND"])
        assert bytes([0, 0, 0, 7]) + suffix == join_key(bytes([0, 0, 0, 7]), 1000, 1500, window_type)

    def test_a_key_without_a_window_is_told(self) -> None:
        (row,) = self.rows("tumbling", 500, [b"1234567"])
        assert "7 bytes are no key with a window" in row["__error"]
