"""Functions over strings: searching, masking, regular expressions, JSON and URLs."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.sql.error import Refusal
from pipelines.sql.functions import Call, Scalar, Value, shaped
from pipelines.sql.types import BOOLEAN, BYTES, INT, STRING, array_of, map_of

STRINGS = array_of(STRING)
# What ksqlDB's MASK puts in place of upper case, lower case, digits and all else.
MASKS = ("X", "x", "n", "-")


def _chr(call: Call) -> Value:
    value = call.arguments[0]
    if value.type == STRING:
        code = f"conv(replace(lower({value.text}), '\\\\u', ''), 16, 10)"
        return call.result(f"decode(unhex(lpad(hex(CAST({code} AS INT)), 4, '0')), 'UTF-16BE')", STRING)
    number = call.want(0, "integer").text
    plain = f"decode(unhex(lpad(hex({number}), 4, '0')), 'UTF-16BE')"
    high = f"decode(unhex(lpad(hex({number}), 8, '0')), 'UTF-32')"
    return call.result(
        f"CASE WHEN {number} BETWEEN 0 AND 65535 THEN {plain} WHEN {number} < 1114112 THEN {high} END", STRING
    )


def _concat_ws(call: Call) -> Value:
    """NULLs are passed over; without a separator there is no result."""
    texts = []
    for index, value in enumerate(call.arguments):
        if value.type == STRINGS and index:
            texts.append(value.text)
        else:
            texts.append(call.want(index, "string").text)
    return call.result(f"concat_ws({', '.join(texts)})", STRING)


def _elt(call: Call) -> Value:
    number = call.want(0, "integer").text
    texts = [call.want(index, "string").text for index in range(1, len(call.arguments))]
    return call.result(
        f"CASE WHEN {number} BETWEEN 1 AND {len(texts)} THEN elt({number}, {', '.join(texts)}) END", STRING
    )


def _field(call: Call) -> Value:
    """The place of a string among the others, 0 if it is none of them or NULL."""
    texts = [call.want(index, "string").text for index in range(len(call.arguments))]
    return call.result(f"coalesce(array_position(array({', '.join(texts[1:])}), {texts[0]}), 0)", INT)


def _place(call: Call) -> Value:
    value = _field(call)
    return call.result(f"CAST({value.text} AS INT)", INT)


def _instr(call: Call) -> Value:
    text, part = call.want(0, "string").text, call.want(1, "string").text
    if len(call.arguments) == 2:
        return call.result(f"instr({text}, {part})", INT)
    start = call.want(2, "integer")
    if start.literal is not None and start.literal > 0 and len(call.arguments) == 3:
        return call.result(f"locate({part}, {text}, {start.text})", INT)
    raise Refusal(start.at, "INSTR takes a literal position from 1, and no occurrence, here")


def _edge(function: str) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        return call.result(f"{function}({call.want(0, 'string').text}, {call.want(1, 'integer').text})", STRING)

    return build


def _masked(text: str, marks: list[str]) -> str:
    upper, lower, digit, other = marks
    return f"mask({text}, {upper}, {lower}, {digit}, {other})"


def _marks(call: Call, first: int) -> list[str]:
    given = call.arguments[first:]
    marks = []
    for index, default in enumerate(MASKS):
        if index < len(given) and given[index].type.kind != "null":
            marks.append(call.want(first + index, "string").text)
        else:
            marks.append("NULL" if index < len(given) else f"'{default}'")
    return marks


def _mask(call: Call) -> Value:
    return call.result(_masked(call.want(0, "string").text, _marks(call, 1)), STRING)


def _mask_part(left: bool, keep: bool) -> Callable[[Call], Value]:
    """MASK_LEFT, MASK_RIGHT, MASK_KEEP_LEFT and MASK_KEEP_RIGHT of n characters."""

    def build(call: Call) -> Value:
        text, count = call.want(0, "string").text, call.want(1, "integer").text
        marks = _marks(call, 2)
        cut = count if left else f"greatest(length({text}) - {count}, 0)"
        head, tail = f"substring({text}, 1, {cut})", f"substring({text}, {cut} + 1)"
        if left != keep:
            head = _masked(head, marks)
        else:
            tail = _masked(tail, marks)
        return call.result(f"concat({head}, {tail})", STRING)

    return build


def _regexp_extract(call: Call) -> Value:
    """The first match of the pattern, or one group of it; NULL without a match."""
    pattern, text = call.want(0, "string").text, call.want(1, "string").text
    group = call.want(2, "integer").text if len(call.arguments) == 3 else "0"
    return call.result(f"CASE WHEN {text} RLIKE {pattern} THEN regexp_extract({text}, {pattern}, {group}) END", STRING)


def _regexp_extract_all(call: Call) -> Value:
    pattern, text = call.want(0, "string").text, call.want(1, "string").text
    group = call.want(2, "integer").text if len(call.arguments) == 3 else "0"
    return call.result(f"regexp_extract_all({text}, {pattern}, {group})", STRINGS)


def _split(call: Call) -> Value:
    """Every part between delimiters, empty ones too; an empty delimiter gives the characters."""
    text, mark = call.want(0, "string").text, call.want(1, "string").text
    quoted = f"concat('\\\\Q', {mark}, '\\\\E')"
    characters = f"filter(split({text}, ''), c -> c <> '')"
    return call.result(f"CASE WHEN {mark} = '' THEN {characters} ELSE split({text}, {quoted}) END", STRINGS)


def _json_array_contains(call: Call) -> Value:
    text, wanted = call.want(0, "string").text, call.arguments[1]
    items = f"from_json({text}, 'array<string>')"
    if wanted.type.kind == "null":
        return call.result(f"coalesce(exists({items}, j -> j IS NULL), false)", BOOLEAN)
    return call.result(f"coalesce(array_contains({items}, {wanted.cast(STRING)}), false)", BOOLEAN)


def _to_json(call: Call) -> Value:
    value = call.arguments[0]
    text = f"to_json(struct({value.text} AS v), map('ignoreNullFields', 'false'))"
    return call.result(f"substring({text}, 6, length({text}) - 6)", STRING)


def _trim_path(call: Call) -> Value:
    """A string at a JSON path as it is, anything else as its JSON; null is NULL."""
    text, path = call.want(0, "string").text, call.want(1, "string").text
    return call.result(f"get_json_object({text}, {path})", STRING)


def _url(part: str) -> Scalar:
    """A part of a URL with its `%` decoded, in which a plus stays one."""
    return shaped(f"try_url_decode(replace(try_parse_url({{0}}, '{part}'), '+', '%2B'))", STRING, "string")


def _url_parameter(call: Call) -> Value:
    url, name = call.want(0, "string").text, call.want(1, "string").text
    found = f"try_parse_url({url}, 'QUERY', {name})"
    return call.result(f"try_url_decode({found})", STRING)


def _translate(call: Call) -> Value:
    texts = [call.want(index, "string").text for index in range(3)]
    return call.result(f"translate({', '.join(texts)})", STRING)


def _coded(function: str) -> Callable[[Call], Value]:
    """TO_BYTES and FROM_BYTES: text in an encoding, hex, utf8, ascii or base64."""

    def build(call: Call) -> Value:
        to = function == "TO_BYTES"
        text = call.want(0, "string" if to else "bytes").text
        name = call.want(1, "string")
        ways = {
            "hex": (f"unhex({text})", f"hex({text})"),
            "utf8": (f"encode({text}, 'UTF-8')", f"decode({text}, 'UTF-8')"),
            "ascii": (f"encode({text}, 'US-ASCII')", f"decode({text}, 'US-ASCII')"),
            "base64": (f"unbase64({text})", f"base64({text})"),
        }
        if name.words is None or name.words.lower() not in ways:
            raise Refusal(name.at, f"{function} needs a literal encoding", f"one of {', '.join(ways)}")
        return call.result(ways[name.words.lower()][0 if to else 1], BYTES if to else STRING)

    return build


def _encode(call: Call) -> Value:
    """ENCODE of a string from one encoding to another."""
    text, source, target = (call.want(index, "string") for index in range(3))
    read = {
        "hex": "unhex({})",
        "utf8": "encode({}, 'UTF-8')",
        "ascii": "encode({}, 'US-ASCII')",
        "base64": "unbase64({})",
    }
    write = {
        "hex": "lower(hex({}))",
        "utf8": "decode({}, 'UTF-8')",
        "ascii": "decode({}, 'US-ASCII')",
        "base64": "base64({})",
    }
    for name in (source, target):
        if name.words is None or name.words.lower() not in read:
            raise Refusal(name.at, "ENCODE needs literal encodings", f"of {', '.join(read)}")
    raw = read[(source.words or "").lower()].format(text.text)
    return call.result(write[(target.words or "").lower()].format(raw), STRING)


TEXT: dict[str, Scalar] = {
    "CHR": Scalar(1, 1, _chr),
    "CONCAT_WS": Scalar(2, None, _concat_ws),
    "ELT": Scalar(2, None, _elt),
    "ENCODE": Scalar(3, 3, _encode),
    "EXTRACTJSONFIELD": Scalar(2, 2, _trim_path),
    "FIELD": Scalar(2, None, _place),
    "FROM_BYTES": Scalar(2, 2, _coded("FROM_BYTES")),
    "INITCAP": shaped("initcap({0})", STRING, "string"),
    "INSTR": Scalar(2, 3, _instr),
    "IS_JSON_STRING": shaped("(try_parse_json({0}) IS NOT NULL)", BOOLEAN, "string"),
    "JSON_ARRAY_CONTAINS": Scalar(2, 2, _json_array_contains),
    "JSON_ARRAY_LENGTH": shaped("json_array_length({0})", INT, "string"),
    "JSON_KEYS": shaped("json_object_keys({0})", STRINGS, "string"),
    "JSON_RECORDS": shaped("from_json({0}, 'map<string,string>')", map_of(STRING, STRING), "string"),
    "LEFT": Scalar(2, 2, _edge("left")),
    "MASK": Scalar(1, 5, _mask),
    "MASK_KEEP_LEFT": Scalar(2, 6, _mask_part(left=True, keep=True)),
    "MASK_KEEP_RIGHT": Scalar(2, 6, _mask_part(left=False, keep=True)),
    "MASK_LEFT": Scalar(2, 6, _mask_part(left=True, keep=False)),
    "MASK_RIGHT": Scalar(2, 6, _mask_part(left=False, keep=False)),
    "REGEXP_EXTRACT": Scalar(2, 3, _regexp_extract),
    "REGEXP_EXTRACT_ALL": Scalar(2, 3, _regexp_extract_all),
    "REGEXP_REPLACE": shaped("regexp_replace({0}, {1}, {2})", STRING, "string", "string", "string"),
    "REGEXP_SPLIT_TO_ARRAY": shaped("split({0}, {1})", STRINGS, "string", "string"),
    "REVERSE": shaped("reverse({0})", STRING, "string"),
    "RIGHT": Scalar(2, 2, _edge("right")),
    "SPLIT": Scalar(2, 2, _split),
    "SPLIT_TO_MAP": shaped("str_to_map({0}, {1}, {2})", map_of(STRING, STRING), "string", "string", "string"),
    "TO_BYTES": Scalar(2, 2, _coded("TO_BYTES")),
    "TO_JSON_STRING": Scalar(1, 1, _to_json),
    "TRANSLATE": Scalar(3, 3, _translate),
    "URL_DECODE_PARAM": shaped("try_url_decode({0})", STRING, "string"),
    "URL_ENCODE_PARAM": shaped("url_encode({0})", STRING, "string"),
    "URL_EXTRACT_FRAGMENT": _url("REF"),
    "URL_EXTRACT_HOST": _url("HOST"),
    "URL_EXTRACT_PARAMETER": Scalar(2, 2, _url_parameter),
    "URL_EXTRACT_PATH": _url("PATH"),
    "URL_EXTRACT_PORT": shaped(
        "CAST(regexp_extract(try_parse_url({0}, 'AUTHORITY'), ':([0-9]+)$', 1) AS INT)", INT, "string"
    ),
    "URL_EXTRACT_PROTOCOL": _url("PROTOCOL"),
    "URL_EXTRACT_QUERY": _url("QUERY"),
}
