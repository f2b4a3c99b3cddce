"""Single keys and values as Python objects: what a format's text means for a column's type.

This is the slow and complete way, for formats and types that Arrow's JSON reader does not know and for records that it
does not take. It converts what ksqlDB's readers convert: any JSON value to a string, the text of a number to a number,
fields in any case. A column that is not there is null. Everything that does not fit raises ValueError.
"""

from __future__ import annotations

import base64
import binascii
import csv
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, NoReturn

from pipelines import kafka_format
from pipelines.plan import Column, Source
from pipelines.sql.types import PRECISION_MAX, SqlType, parse_type

Row = list[Any]
Reader = Callable[[bytes], Row]
# As many digits as a decimal may have; Python's own limit is lower.
_DIGITS = Context(prec=PRECISION_MAX)
_BITS = {"int": 31, "date": 31, "time": 31, "bigint": 63, "timestamp": 63}
# Of any whole number that fits 64 bits. 1e999999999 is a short text, and its digits are not written out.
_EXPONENT_MAX = 18

# Levels of JSON: the record itself is the first. Python's reader needs a bit of its stack for each.
DEPTH_MAX = 500
# Of a whole number that is read as an int. Of one that has more Python refuses to, since it takes so long.
_INT_DIGITS_MAX = 4_300
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_LEVEL = re.compile(rb"[\[\]{}]")
_MINUS_ZERO = re.compile(r"-0(?![0-9.eE])")

# Of a field that is longer than Python's own limit, a result that we have written could not be read again. Of the process.
csv.field_size_limit(sys.maxsize)

_NOT_FINITE = re.compile(r"[+-]?(NaN|Infinity|.*[0-9].*)")


def value_reader(source: Source, columns: Sequence[Column]) -> Reader:
    """Reads a record's value as the given columns of the source, in their order."""
    return _reader(source.value_format, source.value_delimiter, columns, wrapped=source.wrapped)


def key_reader(source: Source, columns: Sequence[Column]) -> Reader:
    """Reads a record's key: a JSON key of one column is the bare value."""
    return _reader(source.key_format, source.key_delimiter, columns, wrapped=len(columns) > 1)


def _reader(form: str, delimiter: str, columns: Sequence[Column], *, wrapped: bool) -> Reader:
    types = [parse_type(column.type) for column in columns]
    if form == "delimited":
        return lambda raw: _delimited(raw.decode(), delimiter, types)
    if form == "kafka":
        return lambda raw: [kafka_format.decode(raw, types[0].spark)] if types else []
    if wrapped:
        names = [column.field for column in columns]
        return _with_own_stack(lambda raw: _fields(exact_json(raw), names, types))
    return _with_own_stack(lambda raw: [fitted(exact_json(raw), types[0])] if types else [])


def _with_own_stack(read: Reader) -> Reader:
    """The reader. Where the caller has left too little of its stack for so deep a value, it reads on a stack of its own."""

    def run(raw: bytes) -> Row:
        try:
            return read(raw)
        except RecursionError:
            with ThreadPoolExecutor(1) as other:
                return other.submit(read, raw).result()

    return run


def exact_json(raw: bytes) -> Any:
    """What the text says, with every digit. Raises ValueError for what is no JSON, or has more than `DEPTH_MAX` levels.

    An object in which fields are given twice is a `_Doubled`.
    """
    if raw.count(b"[") + raw.count(b"{") > DEPTH_MAX and _depth(raw) > DEPTH_MAX:
        raise ValueError(f"more than {DEPTH_MAX} levels of nesting")
    # Given bytes, it would take UTF-16 and half pairs of surrogates, too. A byte order mark may be ignored (RFC 8259).
    text = raw.decode("utf-8-sig")
    if _MINUS_ZERO.search(text):
        return _OF_ODD_NUMBERS.decode(text)
    try:
        return _JSON.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        if len(text) <= _INT_DIGITS_MAX:
            raise
        return _OF_ODD_NUMBERS.decode(text)


def _depth(raw: bytes) -> int:
    """How many levels are open at most, if it is JSON."""
    depth = most = 0
    for bracket in _LEVEL.findall(_TEXT.sub(b"", raw)):
        depth += 1 if bracket in b"[{" else -1
        most = max(most, depth)
    return most


class _Doubled(dict[str, Any]):
    """An object in which fields are given `twice`: it may stand where nothing is read, or only its other fields are."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice = {name for name, times in Counter(name for name, _ in pairs).items() if times > 1}

    def items(self) -> NoReturn:
        """Raises ValueError: who reads it whole, as JSON's writer, reads the doubled fields."""
        raise ValueError("a field is given twice")


class _MinusZero(int):
    """-0, which is a whole number, and as a DOUBLE has its sign, as with Arrow's reader."""

    def __float__(self) -> float:
        return -0.0


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A hook of JSON's reader."""
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else _Doubled(pairs)


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _odd_number(text: str) -> int | Decimal:
    if text == "-0":
        return _MinusZero()
    return int(text) if len(text.lstrip("-")) <= _INT_DIGITS_MAX else Decimal(text)


_JSON = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_object)
# Asked of every whole number it takes its time.
_OF_ODD_NUMBERS = json.JSONDecoder(
    parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_object, parse_int=_odd_number
)


def _fields(value: Any, names: Sequence[str], types: Sequence[SqlType]) -> Row:
    if not isinstance(value, dict):
        raise ValueError("value is not a JSON object")  # noqa: TRY004  # it is data
    spellings: dict[str, list[str]] = {}
    for name in value:
        spellings.setdefault(name.upper(), []).append(name)
    if isinstance(value, _Doubled) and any(
        not value.twice.isdisjoint(spellings.get(name.upper(), ())) for name in names
    ):
        raise ValueError("a field is given twice")
    row = []
    for name, type_ in zip(names, types, strict=True):
        try:
            row.append(fitted(_given(value, name, spellings.get(name.upper(), [])), type_))
        except (ValueError, ArithmeticError) as error:
            raise ValueError(f"{name}: {error}") from error
    return row


def _given(value: dict[str, Any], name: str, spellings: list[str]) -> Any:
    """What is given under the name: under the first of these spellings that has a value."""
    if len(spellings) < 2:  # nothing to choose
        return value[spellings[0]] if spellings else None
    in_order = (*usual_spellings(name), *sorted(spellings))
    return next((value[each] for each in in_order if value.get(each) is not None), None)


def usual_spellings(name: str) -> list[str]:
    """How a field is mostly written: as the statement says, in lower, in upper case; each once.

    Without what is another name: the lower case of `ẞ` is written `SS` in upper case.
    """
    return [each for each in dict.fromkeys([name, name.lower(), name.upper()]) if each.upper() == name.upper()]


def _delimited(text: str, delimiter: str, types: Sequence[SqlType]) -> Row:
    parts = next(csv.reader([text], delimiter=delimiter, strict=True), [""])
    if len(parts) != len(types):
        raise ValueError(f"Unexpected field count: expected {len(types)}, found {len(parts)}")
    return [None if part == "" else fitted(part, type_) for part, type_ in zip(parts, types, strict=True)]


def fitted(value: Any, type_: SqlType) -> Any:
    """The JSON value as the type takes it."""
    if value is None:
        return None
    kind = type_.kind
    if kind == "string":
        return _encodable(value if isinstance(value, str) else _text(value))
    if kind == "boolean":
        return _boolean(value)
    if kind in _BITS:
        return _integer(value, kind)
    if kind == "double":
        return _double(value)
    if kind == "decimal":
        return _whole_decimal(value, type_.precision, type_.scale)
    if kind == "bytes":
        return _bytes(value)
    return _nested(value, type_)


def _nested(value: Any, type_: SqlType) -> Any:
    if type_.kind == "array" and isinstance(value, list):
        return [fitted(item, type_.inner[0]) for item in value]
    if type_.kind == "map" and isinstance(value, dict):
        key, inner = type_.inner
        return [(fitted(name, key), fitted(item, inner)) for name, item in value.items()]
    if type_.kind == "struct" and isinstance(value, dict):
        return dict(zip(type_.names, _fields(value, type_.names, type_.inner), strict=True))
    raise ValueError(f"{type(value).__name__} is no {type_.sql}")


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=_plain_number, ensure_ascii=False)


def _encodable(text: str) -> str:
    """The text itself. Raises ValueError for half a pair of surrogates, which JSON can say and UTF-8 cannot."""
    text.encode()
    return text


def _plain_number(value: Decimal) -> float:
    if value.as_tuple().exponent == 0 and value.adjusted() >= _INT_DIGITS_MAX:
        raise ValueError(f"a number of more than {_INT_DIGITS_MAX} digits is no STRING")
    return float(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError(f"{value!r} is no BOOLEAN")


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise ValueError(f"{type(value).__name__} is no number")  # noqa: TRY004  # it is data
    return _plain(value) if isinstance(value, str) else value


def _plain(text: str) -> str:
    """The text of a number. Python reads some as numbers that Java does not: digits with `_` between them, or of other scripts."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is no number")
    return text.strip()


def _double(value: Any) -> float:
    """The number, or the text of one, as a DOUBLE: infinite where it is too large. Raises ValueError for anything else."""
    plain = _number(value)
    try:
        number = float(plain)
    except OverflowError:
        return math.inf if plain > 0 else -math.inf
    # Java knows these words in one spelling, Python in any, and `inf` too. Digits may be too many for a finite number.
    if isinstance(plain, str) and not math.isfinite(number) and not _NOT_FINITE.fullmatch(plain):
        raise ValueError(f"{plain!r} is no number")
    return number


def _integer(value: Any, kind: str) -> int:
    value = _number(value)
    if isinstance(value, Decimal) and value.adjusted() > _EXPONENT_MAX:
        raise ValueError(f"{value} is too large for {kind}")
    number = int(value)
    if isinstance(value, float | Decimal) and number != value:
        raise ValueError(f"{value} is no whole number")
    bits = _BITS[kind]
    if not -(2**bits) <= number < 2**bits:
        raise ValueError(f"{number} is too large for {kind}")
    return number


def _whole_decimal(value: Any, precision: int, scale: int) -> Decimal:
    """The number, or the text of one, with so many digits behind the point. Raises ValueError where digits would be lost."""
    number = Decimal(str(_number(value)))
    fit = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _DIGITS)
    if fit != number or len(fit.as_tuple().digits) > precision:
        raise ValueError(f"{value} does not fit DECIMAL({precision}, {scale})")
    return fit


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError) as error:
        raise ValueError(f"no base64: {error}") from error
