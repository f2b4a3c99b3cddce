"""Functions over strings: searching, masking, regular expressions and URLs."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.sql.functions import Call, Scalar, Value, shaped
from pipelines.sql.types import INT, STRING, array_of, map_of

STRINGS = array_of(STRING)
# What ksqlDB's MASK puts in place of upper case, lower case, digits and all else.
MASKS = ("X", "x", "n", "-")
# Escapes of characters, two of them for those beyond the first 65,536.
_UNIT, _HIGH, _LOW = (
    "(?i:[0-9a-ce-f][0-9a-f]{3}|d[0-7][0-9a-f]{2})",
    "(?i:d[89ab][0-9a-f]{2})",
    "(?i:d[c-f][0-9a-f]{2})",
)
ESCAPED = rf"\\\\u{_UNIT}|\\\\u{_HIGH}\\\\u{_LOW}"


def _chr(call: Call) -> Value:
    """The character of a code, or of its escape `\\u004b`; NULL for what is no code, such as half a surrogate pair."""
    value = call.arguments[0]
    if value.type == STRING:
        units = f"replace(lower({value.text}), '\\\\u', '')"
        # A pattern for all of them would need a stack as deep as the text is long.
        is_code = f"{value.text} <> '' AND regexp_replace({value.text}, '{ESCAPED}', '') = ''"
        return call.result(f"CASE WHEN {is_code} THEN {_utf16(units)} END", STRING)
    number = call.want(0, "integer").text
    plain = _utf16(f"lpad(hex({number}), 4, '0')")
    high = f"decode(unhex(lpad(hex({number}), 8, '0')), 'UTF-32')"
    is_plain = f"{number} BETWEEN 0 AND 55295 OR {number} BETWEEN 57344 AND 65535"
    return call.result(
        f"CASE WHEN {is_plain} THEN {plain} WHEN {number} BETWEEN 65536 AND 1114111 THEN {high} END", STRING
    )


def _utf16(units: str) -> str:
    return f"decode(unhex({units}), 'UTF-16BE')"


def _elt(call: Call) -> Value:
    number = call.want(0, "integer").text
    texts = [call.want(index, "string").text for index in range(1, len(call.arguments))]
    return call.result(
        f"CASE WHEN {number} BETWEEN 1 AND {len(texts)} THEN elt({number}, {', '.join(texts)}) END", STRING
    )


def _field(call: Call) -> Value:
    """The place of a string among the others, 0 if it is none of them or NULL."""
    texts = [call.want(index, "string").text for index in range(len(call.arguments))]
    found = f"array_position(array({', '.join(texts[1:])}), {texts[0]})"
    return call.result(f"CAST(coalesce({found}, 0) AS INT)", INT)


def _instr(call: Call) -> Value:
    """The place of a part, 0 if there is none: the first, or the n-th, from a position on; from the end backwards for a
    negative one."""
    text, part = call.want(0, "string").text, call.want(1, "string").text
    if len(call.arguments) == 2:
        return call.result(f"coalesce(instr({text}, {part}), 0)", INT)
    start = call.want(2, "integer")
    count = call.want(3, "integer").cast(INT) if len(call.arguments) == 4 else "1"
    forward = _nth(text, part, start.cast(INT), count)
    backward = _nth(f"reverse({text})", f"reverse({part})", f"(- {start.cast(INT)})", count)
    backward = f"CASE WHEN {backward} > 0 THEN length({text}) - {backward} - length({part}) + 2 ELSE 0 END"
    if start.literal is not None:
        found = forward if start.literal > 0 else backward
    else:
        found = f"CASE WHEN {start.text} > 0 THEN {forward} ELSE {backward} END"
    return call.result(f"CAST(coalesce({found}, 0) AS INT)", INT)


def _nth(text: str, part: str, start: str, count: str) -> str:
    """The place of the `count`-th occurrence from `start` on, 0 if there is none."""
    after = (
        f"CASE WHEN __at < 0 OR locate({part}, {text}, __at + 1) = 0 THEN -1 ELSE locate({part}, {text}, __at + 1) END"
    )
    # Constant arguments are computed whatever the condition says.
    most = f"least({count}, length({text}) + 1)"
    found = f"aggregate(sequence(1, {most}), {start} - 1, (__at, __n) -> {after}, __at -> greatest(__at, 0))"
    return f"CASE WHEN {count} BETWEEN 1 AND length({text}) + 1 THEN {found} ELSE 0 END"


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


def _split_to_map(call: Call) -> Value:
    """Entries and what is between name and value are split at plain text; without either there is no map. An entry
    without that text is left out."""
    text, entry, pair = (call.want(index, "string").text for index in range(3))
    at_entry, at_pair = (f"concat('\\\\Q', {mark}, '\\\\E')" for mark in (entry, pair))
    pairs = f"transform(filter(split({text}, {at_entry}), __e -> contains(__e, {pair})), __e -> split(__e, {at_pair}))"
    made = f"map_from_entries(transform({pairs}, __e -> struct(__e[0], __e[1])))"
    proper = f"{entry} <> '' AND {pair} <> '' AND {entry} <> {pair}"
    return call.result(f"CASE WHEN {proper} THEN {made} END", map_of(STRING, STRING))


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


TEXT: dict[str, Scalar] = {
    "CHR": Scalar(1, 1, _chr),
    "ELT": Scalar(2, None, _elt),
    "FIELD": Scalar(2, None, _field),
    "INITCAP": shaped("initcap({0})", STRING, "string"),
    "INSTR": Scalar(2, 4, _instr),
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
    "SPLIT_TO_MAP": Scalar(3, 3, _split_to_map),
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
