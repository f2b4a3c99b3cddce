"""Functions over BYTES, those that take strings as well, and the encodings between the two.

Spark cuts, measures and pads bytes as it does strings. To join or to split them they are taken as hex digits and as
Latin-1, in which every byte is a character.
"""

from __future__ import annotations

from collections.abc import Callable

from pipelines.sql.error import Refusal
from pipelines.sql.functions import Call, Scalar, Value, at_most
from pipelines.sql.types import BIGINT, BYTES, DOUBLE, INT, STRING, SqlType, array_of

# How text in an encoding is read as bytes, and bytes are written in one. As in Java, what ASCII has not is a question
# mark in bytes, and what is no character a replacement character in text, where Spark would fail.
_READ = {
    "hex": "CASE WHEN length({0}) % 2 = 0 THEN unhex({0}) END",
    "utf8": "encode({0}, 'UTF-8')",
    "ascii": "encode(regexp_replace({0}, '[^\\\\x00-\\\\x7F]', '?'), 'US-ASCII')",
    "base64": "unbase64({0})",
}
_WRITE = {
    "hex": "hex({0})",
    "utf8": "make_valid_utf8(CAST({0} AS STRING))",
    "ascii": "regexp_replace(decode({0}, 'ISO-8859-1'), '[^\\\\x00-\\\\x7F]', '\ufffd')",
    "base64": "base64({0})",
}
# `0x…`, to which a digit may be missing, `x'…'` and plain digits are hex to ENCODE.
_HEX_DIGITS = (
    "CASE WHEN {0} LIKE '0x%' THEN concat(repeat('0', length({0}) % 2), substring({0}, 3)) "
    "WHEN {0} RLIKE '^[xX]\\'.*\\'$' THEN substring({0}, 3, length({0}) - 3) ELSE {0} END"
)
BYTE_ORDERS = ("BIG_ENDIAN", "LITTLE_ENDIAN")
# Characters, or bytes, of a text that LPAD and RPAD make: more than any topic takes as a record.
PADDED_MAX = 16 * 1024 * 1024


def text_or_bytes(call: Call) -> SqlType:
    """The type that a function of strings or of bytes is called with."""
    return BYTES if any(value.type == BYTES for value in call.arguments) else STRING


def _texts(call: Call, kind: str, indices: range) -> list[str]:
    return [call.want(index, kind).text for index in indices]


def _len(call: Call) -> Value:
    return call.result(f"length({call.want(0, text_or_bytes(call).kind).text})", INT)


def _substring(call: Call) -> Value:
    """Positions count from 1, negative ones from the end; one before the start means the start."""
    type_ = text_or_bytes(call)
    whole, start = call.want(0, type_.kind).text, call.want(1, "integer")
    place = start.cast(INT)
    if start.literal is None or start.literal < 0:
        place = f"CASE WHEN {start.text} < -length({whole}) THEN 1 ELSE {place} END"
    length = f", {call.want(2, 'integer').cast(INT)}" if len(call.arguments) == 3 else ""
    return call.result(f"substring({whole}, {place}{length})", type_)


def _pad(function: str) -> Callable[[Call], Value]:
    """An empty padding or a negative length gives NULL."""

    def build(call: Call) -> Value:
        type_ = text_or_bytes(call)
        whole, padding = call.want(0, type_.kind).text, call.want(2, type_.kind).text
        length = call.want(1, "integer")
        wanted = length.cast(INT)
        if length.literal is None or length.literal > PADDED_MAX:
            wanted = at_most(wanted, PADDED_MAX, f"the length of {function.upper()}")
        padded = f"{function}({whole}, {wanted}, {padding})"
        return call.result(f"CASE WHEN {length.text} >= 0 AND length({padding}) > 0 THEN {padded} END", type_)

    return build


def _concat_ws(call: Call) -> Value:
    """NULLs are passed over; without a separator there is no result."""
    if text_or_bytes(call) == BYTES:
        parts = [f"hex({text})" for text in _texts(call, "bytes", range(len(call.arguments)))]
        return call.result(f"unhex(concat_ws({', '.join(parts)}))", BYTES)
    texts = []
    for index, value in enumerate(call.arguments):
        texts.append(value.text if value.type == array_of(STRING) and index else call.want(index, "string").text)
    return call.result(f"concat_ws({', '.join(texts)})", STRING)


def _split(call: Call) -> Value:
    """Every part between delimiters, empty ones too; an empty delimiter gives the characters or bytes, if any."""
    type_ = text_or_bytes(call)
    text, mark = _texts(call, type_.kind, range(2))
    if type_ == BYTES:
        text, mark = (f"decode({part}, 'ISO-8859-1')" for part in (text, mark))
    parts = f"split({text}, concat('\\\\Q', {mark}, '\\\\E'))"
    characters = f"filter(split({text}, ''), __c -> __c <> '')"
    found = f"CASE WHEN {mark} = '' AND {text} <> '' THEN {characters} ELSE {parts} END"
    if type_ == BYTES:
        found = f"transform({found}, __p -> encode(__p, 'ISO-8859-1'))"
    return call.result(found, array_of(type_))


def _coding(call: Call, index: int) -> str | None:
    """The encoding that argument `index` names, None if there is none of that name: then there is no result."""
    name = call.want(index, "string")
    if name.words is None:
        raise Refusal(name.at, f"{call.name} needs a literal encoding", f"one of {', '.join(_READ)}")
    return name.words.lower() if name.words.lower() in _READ else None


def _to_bytes(call: Call) -> Value:
    text, coding = call.want(0, "string").text, _coding(call, 1)
    return call.result(_READ[coding].format(text) if coding else "CAST(NULL AS BINARY)", BYTES)


def _from_bytes(call: Call) -> Value:
    raw, coding = call.want(0, "bytes").text, _coding(call, 1)
    return call.result(_WRITE[coding].format(raw) if coding else "CAST(NULL AS STRING)", STRING)


def _encode(call: Call) -> Value:
    """ENCODE of a string from one encoding to another; hex is written with small letters."""
    text, source, target = call.want(0, "string").text, _coding(call, 1), _coding(call, 2)
    if source is None or target is None:
        return call.result("CAST(NULL AS STRING)", STRING)
    raw = _READ[source].format(_HEX_DIGITS.format(text) if source == "hex" else text)
    written = _WRITE[target].format(raw)
    return call.result(f"lower({written})" if target == "hex" else written, STRING)


def _number(width: int, type_: SqlType, read: str) -> Callable[[Call], Value]:
    """A number from as many bytes as it has; NULL for another number of them, and for another order."""

    def build(call: Call) -> Value:
        raw = call.want(0, "bytes").text
        reverse = ", ".join(f"substring({raw}, {place}, 1)" for place in range(width, 0, -1))
        found = dict(zip(BYTE_ORDERS, (read.format(raw), read.format(f"concat({reverse})")), strict=True))
        order = call.want(1, "string") if len(call.arguments) == 2 else Value("", STRING, call.at, words=BYTE_ORDERS[0])
        if order.words is not None:
            text = found.get(order.words.upper(), f"CAST(NULL AS {type_.ddl.upper()})")
        else:
            text = f"CASE upper({order.text}) " + " ".join(f"WHEN '{k}' THEN {v}" for k, v in found.items()) + " END"
        return call.result(f"CASE WHEN length({raw}) = {width} THEN {text} END", type_)

    return build


_UNSIGNED = "CAST(conv(hex({}), 16, 10) AS BIGINT)"
_SIGNED = "CAST(conv(hex({}), 16, -10) AS BIGINT)"

BYTE_FUNCTIONS: dict[str, Scalar] = {
    "BIGINT_FROM_BYTES": Scalar(1, 2, _number(8, BIGINT, _SIGNED)),
    "CONCAT_WS": Scalar(2, None, _concat_ws),
    "DOUBLE_FROM_BYTES": Scalar(
        1, 2, _number(8, DOUBLE, f"CAST(java_method('java.lang.Double', 'longBitsToDouble', {_SIGNED}) AS DOUBLE)")
    ),
    "ENCODE": Scalar(3, 3, _encode),
    "FROM_BYTES": Scalar(2, 2, _from_bytes),
    "INT_FROM_BYTES": Scalar(1, 2, _number(4, INT, f"CAST(shiftright(shiftleft({_UNSIGNED}, 32), 32) AS INT)")),
    "LEN": Scalar(1, 1, _len),
    "LPAD": Scalar(3, 3, _pad("lpad")),
    "RPAD": Scalar(3, 3, _pad("rpad")),
    "SPLIT": Scalar(2, 2, _split),
    "SUBSTRING": Scalar(2, 3, _substring),
    "TO_BYTES": Scalar(2, 2, _to_bytes),
}
