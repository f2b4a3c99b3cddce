"""What a stored state says: the value of each aggregate from its parts, as `MergeSql` computes it for the result topic.

The two agree in every case, nothing and nulls among them: a row that is pulled is the row that was emitted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pipelines.engine.values import exact_json, fitted
from pipelines.plan import DEVIATION, EARLIEST, LATEST, VARIANCE, Aggregate
from pipelines.sql.types import SqlType, parse_type
from statestore.errors import InvalidConfig

# From the parts of one state, in the order of `merge.state_parts`.
Value = Callable[..., Any]


def value_of(aggregate: Aggregate) -> Value:
    """How the aggregate's value is made of its parts as Python values. Raises `InvalidConfig` for an unknown one.

    Decimals have all their digits, bytes are bytes, times are numbers, maps and structs are dictionaries.
    """
    type_ = parse_type(aggregate.type)
    match aggregate.function:
        case "count_all" | "count" | "min" | "max":
            return lambda part: part
        case "sum":
            zero = _zero(type_)
            return lambda part: zero if part is None else part
        case "avg":
            return _mean
        case function if function in (DEVIATION, VARIANCE):
            return _deviation if function == DEVIATION else _variance
        case function if function in (LATEST, EARLIEST):
            return lambda part: _named(part, type_)
        case "count_distinct":
            return lambda state: 0 if state is None else len(json.loads(state))
        case "histogram":
            return lambda state: None if state is None else json.loads(state)
        case "attr":
            return lambda state: _only(json.loads(state or "{}"), type_)
        case "collect_map":
            return lambda state: None if state is None else _mapped(json.loads(state), type_.inner[1])
        case "collect_list" | "collect_set" | "earliest_n" | "latest_n" | "topk" | "topkdistinct":
            return lambda state: None if state is None else [_of_text(text, type_) for text in json.loads(state)]
        case other:
            raise InvalidConfig("plan has an unknown aggregate", function=other)


def _zero(type_: SqlType) -> Any:
    match type_.kind:
        case "double":
            return 0.0
        case "decimal":
            return Decimal((0, (0,), -type_.scale))
    return 0


def _mean(total: float | None, count: int | None) -> float | None:
    if not count:
        return 0.0
    # The sum of whole numbers may have more digits than a double; Spark rounds it first.
    return None if total is None else float(total) / count


def _variance(_total: float | None, count: int | None, squares: float | None) -> float | None:
    if count is None or count < 2:
        return 0.0
    return None if squares is None else squares / (count - 1)


def _deviation(total: float | None, count: int | None, squares: float | None) -> float | None:
    variance = _variance(total, count, squares)
    if variance is None:
        return None
    # Of rows taken back, rounding may leave less than nothing.
    return math.nan if variance < 0 else math.sqrt(variance)


def _only(counts: dict[str, int], type_: SqlType) -> Any:
    """The value that all rows have; None while they differ."""
    return _of_text(next(iter(counts)), type_) if len(counts) == 1 else None


def _mapped(texts: dict[str, str], type_: SqlType) -> dict[str, Any]:
    return {name: _of_text(text, type_) for name, text in texts.items()}


def _of_text(text: str, type_: SqlType) -> Any:
    """The value of a JSON text that `lists.py` keeps."""
    return _named(fitted(exact_json(text.encode()), type_), type_)


def _named(value: Any, type_: SqlType) -> Any:
    """The value with its maps as dictionaries, where Arrow has lists of pairs."""
    if value is None or not type_.is_nested:
        return value
    match type_.kind:
        case "array":
            return [_named(item, type_.inner[0]) for item in value]
        case "map":
            return {name: _named(item, type_.inner[1]) for name, item in value}
    return {name: _named(value[name], inner) for name, inner in zip(type_.names, type_.inner, strict=True)}
