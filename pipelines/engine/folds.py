"""Aggregates that keep a list: COLLECT_LIST, TOPK, LATEST_BY_OFFSET and their relatives, one row after the other.

The state is JSON text, an array of values as they are or as pairs, so it lies in any store like a string. A plan names
the fold and its limit, `topk:3`. Rows are folded in their order, so these queries run in record order in both emissions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pipelines.sql.types import parse_type

# ksqlDB's limit of what collecting functions keep.
KEPT_MAX = 1000
State = list[Any]
Step = Callable[[State, Any, int], None]


@dataclass(frozen=True)
class Fold:
    """`step` takes a value into the state, given the limit. `result` is Spark SQL over the state's `{items}`."""

    step: Step
    result: str = "{items}"


def _collect_list(state: State, value: Any, limit: int) -> None:
    if len(state) < limit:
        state.append(value)


def _collect_set(state: State, value: Any, limit: int) -> None:
    if len(state) < limit and value not in state:
        state.append(value)


def _distinct(state: State, value: Any, limit: int) -> None:
    if value is not None and value not in state:
        state.append(value)


def _topk(state: State, value: Any, limit: int) -> None:
    if value is not None:
        state.append(value)
        state.sort(key=_ordered, reverse=True)
        del state[limit:]


def _topk_distinct(state: State, value: Any, limit: int) -> None:
    if value not in state:
        _topk(state, value, limit)


def _ordered(value: Any) -> Any:
    return Decimal(value) if isinstance(value, str) and _is_number(value) else value


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdigit()


def _latest(state: State, value: Any, limit: int) -> None:
    if value is not None:
        state.append(value)
        del state[:-limit]


def _earliest(state: State, value: Any, limit: int) -> None:
    if value is not None and len(state) < limit:
        state.append(value)


def _histogram(state: State, value: Any, limit: int) -> None:
    for pair in state:
        if pair["key"] == value:
            pair["value"] += 1
            return
    if value is not None and len(state) < limit:
        state.append({"key": value, "value": 1})


FOLDS: dict[str, Fold] = {
    "collect_list": Fold(_collect_list),
    "collect_set": Fold(_collect_set),
    "count_distinct": Fold(_distinct, "CAST(size({items}) AS BIGINT)"),
    "earliest": Fold(_earliest, "element_at({items}, 1)"),
    "earliest_n": Fold(_earliest),
    "histogram": Fold(_histogram, "map_from_entries({items})"),
    "latest": Fold(_latest, "element_at({items}, 1)"),
    "latest_n": Fold(_latest),
    "topk": Fold(_topk),
    "topkdistinct": Fold(_topk_distinct),
}


def is_fold(function: str) -> bool:
    """Whether the plan's aggregate is one of these."""
    return function.partition(":")[0] in FOLDS


def folded(function: str, states: list[str | None], run_of: list[int], values: list[Any]) -> list[str]:
    """The state after each row. `states` are the stored ones, one a run; `values` one a row."""
    name, _, limit = function.partition(":")
    step, most = FOLDS[name].step, int(limit or KEPT_MAX)
    lists: list[State] = [json.loads(state) if state is not None else [] for state in states]
    after = []
    for run, value in zip(run_of, values, strict=True):
        step(lists[run], _plain(value), most)
        after.append(json.dumps(lists[run]))
    return after


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal) else value


def result_sql(function: str, type_: str, state: str) -> str:
    """The aggregate's value as Spark SQL; `type_` is that of its argument, `state` the state's column."""
    name = function.partition(":")[0]
    item = "struct<key:string,value:bigint>" if name == "histogram" else parse_type(type_).ddl
    items = f"from_json(coalesce({state}, '[]'), 'array<{item}>')"
    result = FOLDS[name].result.format(items=items)
    return f"CASE WHEN size({items}) > 0 THEN {result} END" if name in ("latest", "earliest") else result
