"""Aggregates that keep values: lists, sets, the largest, the first and the last few, and how often each occurs.

A value is the text in which Spark writes it as JSON, so equal values have equal texts, and no digit is lost. A state is
a JSON list of such texts; a histogram's is an object of counts, by the string, and so is that of ATTR, by the text; a
map's is an object of texts. These are computed row by row: a list has no
arithmetic.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.engine.runs import Bools, Runs
from pipelines.plan import OBJECTS, Aggregate
from pipelines.sql.types import SqlType, parse_type

# As ksqlDB has it: values beyond are left out.
HISTOGRAM_MAX = 1_000
# UTF-16 units of a name in JSON, as Jackson takes it by default (`StreamReadConstraints`).
_NAME_MAX = 50_000
_BEFORE, _AFTER, _NULL = len('{"v":'), len("}"), "null"
Step = Callable[[Any, str], Any]


def lists(
    aggregate: Aggregate, runs: Runs, heads: pa.Array, rows: pa.Array, *, every: bool, undone: Bools | None = None
) -> pa.Array:
    """The state in every slot, or with `every` off in those of the runs' heads and ends.

    `rows` are JSON objects that have the value as `v`, or nothing for null. Those of `undone` are taken back.
    """
    forward, backward = _step(aggregate), _undo(aggregate)
    start: Any = {} if aggregate.function in OBJECTS else []
    values = [text[_BEFORE:-_AFTER] or _NULL for text in rows.to_pylist()]
    _require_short_names(aggregate, values)
    row_of = np.empty(runs.size, dtype=np.int64)
    row_of[runs.slots] = np.arange(len(values))
    found: list[str | None] = [None] * runs.size
    for head, end, old in zip(runs.heads.tolist(), runs.ends.tolist(), heads.to_pylist(), strict=True):
        state = json.loads(old) if old is not None else type(start)()
        found[head] = old
        for slot in range(head + 1, end + 1):
            row = row_of[slot]
            step = backward if undone is not None and undone[row] else forward
            state = step(state, values[row])
            if every or slot == end:
                found[slot] = json.dumps(state, separators=(",", ":"), ensure_ascii=False)
    return pa.array(found, pa.string())


def _require_short_names(aggregate: Aggregate, values: list[str]) -> None:
    """Raises ValueError for a value that is, or has, a name too long for the JSON that Spark reads: all would be NULL."""
    if aggregate.function not in OBJECTS and "map<" not in aggregate.type:
        return
    for text in values:
        # No character of the text is less than half a UTF-16 unit.
        if len(text) > _NAME_MAX // 2 and (longest := _longest_name(aggregate, text)) > _NAME_MAX:
            raise ValueError(f"{aggregate.function} of a text or map key of {longest} characters: at most {_NAME_MAX}")


def _longest_name(aggregate: Aggregate, text: str) -> int:
    names = [text] if aggregate.function == "attr" else _names(json.loads(text))
    return max((len(name.encode("utf-16-le", "surrogatepass")) // 2 for name in names), default=0)


def _names(value: Any) -> Iterator[str]:
    """Texts that may stand as names: a histogram's is the value, any other's are those of its maps."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            if not isinstance(inner, str):
                yield from _names(inner)
    elif isinstance(value, list):
        for inner in value:
            if not isinstance(inner, str):
                yield from _names(inner)


def _step(aggregate: Aggregate) -> Step:
    most = aggregate.most or 0
    match aggregate.function:
        case "collect_list":
            return lambda state, value: state if most and len(state) >= most else [*state, value]
        case "collect_set":
            return lambda state, value: state if value in state or (most and len(state) >= most) else [*state, value]
        case "count_distinct":
            return lambda state, value: state if value == _NULL or value in state else [*state, value]
        case "earliest_n":
            return lambda state, value: [*state, value] if len(state) < most and _counts(aggregate, value) else state
        case "latest_n":
            return lambda state, value: [*state, value][-most:] if _counts(aggregate, value) else state
        case "histogram":
            return _counted
        case "attr":
            return lambda state, value: {**state, value: state.get(value, 0) + 1}
        case "collect_map":
            return lambda state, value: {**state, **(json.loads(value) or {})}
    distinct = aggregate.function == "topkdistinct"
    order = _order(parse_type(aggregate.type))

    def largest(state: list[str], value: str) -> list[str]:
        if value == _NULL or (distinct and value in state):
            return state
        return sorted([*state, value], key=order, reverse=True)[:most]

    return largest


def _undo(aggregate: Aggregate) -> Step:
    """The step that takes a value back: of a list its last occurrence. Lists and counts have one."""

    def taken(state: list[str], value: str) -> list[str]:
        at = len(state) - 1 - state[::-1].index(value) if value in state else len(state)
        return state[:at] + state[at + 1 :]

    match aggregate.function:
        case "histogram":
            return lambda state, value: _less(state, json.loads(value))
        case "attr":
            return _less
    return taken


def _counts(aggregate: Aggregate, value: str) -> bool:
    return aggregate.nulls or value != _NULL


def _counted(state: dict[str, int], value: str) -> dict[str, int]:
    text = json.loads(value)
    if text is None or (text not in state and len(state) >= HISTOGRAM_MAX):
        return state
    return {**state, text: state.get(text, 0) + 1}


def _less(state: dict[str, int], text: str) -> dict[str, int]:
    left = {**state, text: state[text] - 1} if text in state else state
    return {name: count for name, count in left.items() if count}


def _order(type_: SqlType) -> Callable[[str], Any]:
    """What texts of the type's values are sorted by; rows by their first field."""
    if type_.kind == "struct":
        parsed, by = _PARSED.get(type_.inner[0].kind, _AS_IT_IS)
        return lambda text: by(parsed(text)["sort_col"])
    parsed, by = _PARSED.get(type_.kind, _AS_IT_IS)
    return lambda text: by(parsed(text))


def _exact(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def _double(value: float | str) -> tuple[bool, float]:
    """NaN is the largest, as Java has it. Spark writes it, and what is infinite, as a string."""
    number = float(value)
    return math.isnan(number), number


# How a text is parsed, by the type, and how what comes of it is compared. Bytes are base64 in JSON.
_Compared = tuple[Callable[[str], Any], Callable[[Any], Any]]
_AS_IT_IS: _Compared = (_exact, lambda value: value)
_PARSED: dict[str, _Compared] = {"bytes": (json.loads, base64.b64decode), "double": (json.loads, _double)}
