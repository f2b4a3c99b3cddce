"""The SQL of one plan: what Spark computes before READ, and between READ and WRITE.

Every aggregate is one or two mergeable parts: a batch's part is computed before READ (`__p_…`), the state holds the
same parts (`__s_…`), and old and new merge by one expression (`__m_…`). What the plan calls `A0` is a column computed
from merged parts, or from stored ones where HAVING asks what was. No name of a person's begins with `__`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.blockvalues import NULL_VALUE
from pipelines.engine.decimals import halves, is_halved, total
from pipelines.engine.encode import key_fields_bytes, value_bytes
from pipelines.plan import DEVIATION, LISTS, VARIANCE, Aggregate, GroupKey, Query
from pipelines.sql.names import WINDOW_BOUNDS
from pipelines.sql.types import parse_type
from statestore.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.engine.exchange import ArrowFunction


@dataclass(frozen=True)
class Part:
    """One mergeable part of an aggregate. `partial` aggregates input rows; `merge` joins `{old}` and `{new}`.

    `type` is the Spark SQL type in which the part is kept; merging never leaves it. `operation` is the part's name
    among the running operations, for rows that are taken one after the other. `upper` aggregates input rows as well:
    to the upper half of a decimal sum, of which `partial` is the lower one (`decimals.py`).
    """

    name: str
    type: str
    operation: str
    partial: str
    merge: str
    upper: str = ""


PARTIAL, STORED, MERGED, UPPER = "__p_", "__s_", "__m_", "__u_"
# Group keys and parts of rows that the worker has combined, and how a part is made of such parts.
GROUPED, COMBINED = "__g_", "__c_"
_OF_COMBINED = {"count_all": "sum", "count": "sum", "sum": "sum", "min": "min", "max": "max"}
_HEAD = ("__key", "__dead", "__token", "__old_time")
# What rows in record order carry besides: whether the row's state is kept, and the task's stream time and late records.
LAST, STREAM_TIME, DROPPED = "__last", "__stream_time", "__dropped"
# Of a table's rows: the raw key, and the state of an entry that holds what a row counts for, empty to delete it.
ROW, ROW_STATE = "__row", "__row_state"
# A null value is a row of its own; every other error makes a dead letter.
FAILED = f"__error IS NOT NULL AND __error <> '{NULL_VALUE}'"
NO_KEY = "group by key is null"
_ADD = "CASE WHEN {old} IS NULL THEN {new} WHEN {new} IS NULL THEN {old} ELSE {old} + {new} END"
# Of decimals: READ has added them up, see `MergeSql.adding`.
_ADDED = "{new}"


def state_parts(aggregate: Aggregate) -> list[Part]:
    """The parts that the state keeps of one aggregate. Those of `plan.ORDERED` have no partial and do not merge."""
    name, kind, of = aggregate.name, parse_type(aggregate.type).ddl, aggregate.argument
    match aggregate.function:
        case "count_all":
            return [Part(name, kind, "count_all", "count(1)", _ADD)]
        case "count":
            return [Part(name, kind, "count", f"count({of})", _ADD)]
        case "sum":
            return [_sum(name, kind, str(of))]
        case "min":
            return [Part(name, kind, "min", f"min({of})", "least({old}, {new})")]
        case "max":
            return [Part(name, kind, "max", f"max({of})", "greatest({old}, {new})")]
        case "avg":
            count = Part(f"{name}_count", "bigint", "count", f"count({of})", _ADD)
            return [Part(f"{name}_sum", kind, "sum", f"sum({of})", _ADD), count]
        case "latest_by_offset" | "earliest_by_offset":
            return [Part(name, kind, aggregate.function, "", "")]
        case "stddev_sample" | "stddev_samp":
            operations = {"sum": kind, "count": "bigint", "squares": "double"}
            return [Part(f"{name}_{operation}", of_, operation, "", "") for operation, of_ in operations.items()]
        case function if function in LISTS:
            return [Part(name, "string", function, "", "")]
        case other:
            raise InvalidConfig("plan has an unknown aggregate", function=other)


def _sum(name: str, kind: str, of: str) -> Part:
    type_ = arrow_type(kind)
    if not pa.types.is_decimal(type_):
        return Part(name, kind, "sum", f"sum({of})", _ADD)
    if not is_halved(type_):
        return Part(name, kind, "sum", f"sum({of})", _ADDED)
    lower, upper = halves(of, type_)
    return Part(name, kind, "sum", f"sum({lower})", _ADDED, f"sum({upper})")


def _value(aggregate: Aggregate, prefix: str) -> str:
    """The aggregate's value from its parts, which are columns named `prefix` + part. Of nothing it is ksqlDB's zero."""
    if aggregate.function == "avg":
        total, count = f"`{prefix}{aggregate.name}_sum`", f"`{prefix}{aggregate.name}_count`"
        return f"CASE WHEN {count} > 0 THEN CAST({total} AS DOUBLE) / {count} ELSE 0.0D END"
    if aggregate.function in (DEVIATION, VARIANCE):
        squares, count = f"`{prefix}{aggregate.name}_squares`", f"`{prefix}{aggregate.name}_count`"
        variance = f"{squares} / ({count} - 1)"
        root = f"sqrt({variance})" if aggregate.function == DEVIATION else variance
        return f"CASE WHEN {count} > 1 THEN {root} ELSE 0.0D END"
    part = f"`{prefix}{aggregate.name}`"
    if aggregate.function in LISTS:
        return _listed(aggregate, part)
    return f"coalesce({part}, CAST(0 AS {parse_type(aggregate.type).ddl}))" if aggregate.function == "sum" else part


def _listed(aggregate: Aggregate, part: str) -> str:
    """The value of a part that is a list of JSON texts, or an object."""
    match aggregate.function:
        case "count_distinct":
            return f"CAST(coalesce(json_array_length({part}), 0) AS BIGINT)"
        case "histogram":
            return f"from_json({part}, 'map<string,bigint>')"
        case "attr":
            texts = f"json_object_keys({part})"
            return f"CASE WHEN size({texts}) = 1 THEN {_from_text(f'{texts}[0]', aggregate)} END"
        case "collect_map":
            value = _from_text("__v", replace(aggregate, type=parse_type(aggregate.type).inner[1].spark))
            return f"transform_values(from_json({part}, 'map<string,string>'), (__k, __v) -> {value})"
    joined = f"concat('[', array_join(from_json({part}, 'array<string>'), ','), ']')"
    return f"from_json({joined}, 'array<{parse_type(aggregate.type).ddl}>')"


def _from_text(text: str, aggregate: Aggregate) -> str:
    """The value of a JSON text, in the aggregate's type."""
    return f"element_at(from_json(concat('[', {text}, ']'), 'array<{parse_type(aggregate.type).ddl}>'), 1)"


def key_bytes(query: Query, group_by: tuple[GroupKey, ...]) -> str:
    """The serialised key: null if a group key is null."""
    return key_fields_bytes(query, [(key.name, key.expression, key.type) for key in group_by])


DEAD = (
    "to_json(struct({reason} AS reason, __raw.topic AS topic, __raw.partition AS partition, __raw.offset AS offset, "
    "__raw.timestamp_ms AS timestamp_ms, base64(__raw.key) AS key, base64(__raw.value) AS value))"
)


class MergeSql:
    """Select lists and predicates of one plan. In record order old and new are merged already: that step is left out."""

    def __init__(self, query: Query) -> None:
        self.query = query
        entries = (ROW_STATE,) if query.changelog else ()
        self._ordered = (LAST, STREAM_TIME, DROPPED, *entries) if query.in_record_order else ()
        self._head = (*_HEAD, *self._ordered)
        self.parts = [part for aggregate in query.aggregates for part in state_parts(aggregate)]

    def filter(self) -> str:
        """Rows to keep: those that WHERE takes, and every bad record; of a table all, since they end what was."""
        if self.query.changelog:
            return f"({FAILED}) OR {ROW} IS NOT NULL"
        return "true" if self.query.where is None else f"__error IS NOT NULL OR ({self.query.where})"

    def keyed(self) -> list[str]:
        """Input columns of the aggregation: key bytes, dead letter, and the decoded row.

        A table's row without a key counts nowhere: deleted, not let through, or of a group that is null.
        """
        reason = f"coalesce(__error, '{NO_KEY}')"
        key = key_bytes(self.query, self.query.group_by)
        if self.query.changelog:
            counts = f"__error IS NULL AND ({self.query.where or 'true'})"
            return [
                f"CASE WHEN {counts} THEN {key} END AS __key",
                f"CASE WHEN {FAILED} THEN {DEAD.format(reason='__error')} END",
            ]
        dead = f"CASE WHEN __error IS NOT NULL OR __key IS NULL THEN {DEAD.format(reason=reason)} END"
        return [f"CASE WHEN __error IS NULL THEN {key} END AS __key", dead]

    def with_keys(self, decoded: DataFrame) -> DataFrame:
        """The rows to aggregate, with their `__key` and `__dead`."""
        key, dead = self.keyed()
        kept = decoded.where(self.filter()) if self.query.where or self.query.changelog else decoded
        return kept.selectExpr("*", key).selectExpr("*", f"{dead} AS __dead")

    def grouped(self) -> list[str]:
        """Aggregates per key over a batch: time, group keys and parts."""
        keys = [f"first({key.expression}) AS `{key.name}`" for key in self.query.group_by]
        return [
            "max(ROWTIME) AS __time",
            *keys,
            *(f"CAST({part.partial} AS {part.type}) AS `{PARTIAL}{part.name}`" for part in self.parts),
            *(f"{part.upper} AS `{UPPER}{part.name}`" for part in self.parts if part.upper),
        ]

    def combined_keys(self, combined: DataFrame) -> DataFrame:
        """`with_keys` for rows that `combine.py` gives, among which WHERE has chosen."""
        query = replace(self.query, group_by=self._combined_group(), where=None)
        return MergeSql(query).with_keys(combined)

    def combined(self) -> list[str]:
        """`grouped` over such rows."""
        keys = [f"first({key.expression}) AS `{key.name}`" for key in self._combined_group()]
        parts = [
            f"CAST({_OF_COMBINED[part.operation]}(`{COMBINED}{part.name}`) AS {part.type}) AS `{PARTIAL}{part.name}`"
            for part in self.parts
        ]
        return ["max(ROWTIME) AS __time", *keys, *parts]

    def _combined_group(self) -> tuple[GroupKey, ...]:
        return tuple(replace(key, expression=f"`{GROUPED}{key.name}`") for key in self.query.group_by)

    def adding(self, read: ArrowFunction) -> ArrowFunction:
        """READ of `grouped` rows that also adds the stored decimal sums to theirs; where there are none, as it is.

        It raises `OverflowError` of a sum that is too large.
        """
        sums = {part.name: part.upper for part in self.parts if part.merge == _ADDED}

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rows in read(batches):
                for name, upper in sums.items():
                    new = f"{PARTIAL}{name}"
                    half = rows.column(f"{UPPER}{name}") if upper else None
                    added = total(rows.column(f"{STORED}{name}"), rows.column(new), half)
                    rows = rows.set_column(rows.schema.get_field_index(new), new, added)
                yield rows

        return run if sums else read

    def results(self, merged: DataFrame) -> DataFrame:
        """What READ gave, as the rows that WRITE takes."""
        for columns in self.steps():
            merged = merged.selectExpr(*columns)
        return merged

    def steps(self) -> list[list[str]]:
        """Select lists from READ to WRITE, each over the one before."""
        merged = [] if self.query.in_record_order else [self._merged()]
        had = [self._was_values(), self._was_shown()] if self.query.having else []
        return [*merged, *had, self._values(), self._emitted()]

    def _merged(self) -> list[str]:
        merges = []
        for part in self.parts:
            merged = part.merge.format(old=f"`{STORED}{part.name}`", new=f"`{PARTIAL}{part.name}`")
            merges.append(f"CAST({merged} AS {part.type}) AS `{MERGED}{part.name}`")
        time = "CASE WHEN __old_time IS NULL THEN __time ELSE greatest(__old_time, __time) END AS __time"
        stored = [f"`{STORED}{part.name}`" for part in self.parts]
        return [*self._head, time, *self._group_names(), *stored, *merges]

    def _was_values(self) -> list[str]:
        return ["*", *(f"{_value(a, STORED)} AS `{a.name}`" for a in self.query.aggregates)]

    def _was_shown(self) -> list[str]:
        was = f"__old_time IS NOT NULL AND coalesce({self.query.having}, false) AS __was"
        return [*self._head, "__time", *self._group_names(), *self._merged_names(), was]

    def _values(self) -> list[str]:
        was = ["__was"] if self.query.having else []
        values = [f"{_value(a, MERGED)} AS `{a.name}`" for a in self.query.aggregates]
        return [*self._head, "__time", *self._group_names(), *self._merged_names(), *was, *values]

    def _emitted(self) -> list[str]:
        emit, shown = "1", "true"
        if self.query.having:
            shown = f"coalesce({self.query.having}, false)"
            emit = f"CASE WHEN {shown} THEN 1 WHEN __was THEN 2 ELSE 0 END"
        if self._ordered:
            # A row that only brings figures.
            silent = f"__key IS NULL OR {ROW_STATE} IS NOT NULL" if self.query.changelog else "__key IS NULL"
            emit = f"CASE WHEN {silent} THEN 0 ELSE {emit} END"
        emitted = f"CAST({emit} AS TINYINT) AS __emit"
        value = f"CASE WHEN __dead IS NULL AND {shown} THEN {value_bytes(self.query)} END AS __value"
        return ["__key", "__dead", "__token", *self._ordered, "__time", emitted, value, *self._merged_names()]

    def _group_names(self) -> list[str]:
        bounds = WINDOW_BOUNDS if self.query.window is not None else ()
        return [*(f"`{key.name}`" for key in self.query.group_by), *bounds]

    def _merged_names(self) -> list[str]:
        return [f"`{MERGED}{part.name}`" for part in self.parts]
