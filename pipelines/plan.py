"""What a pipeline computes, as plain data.

The SQL front end makes these values, the engine runs them, the batches topic keeps them. A plan is complete: the
engine needs nothing else to run the batch again, so a batch that was planned under an older plan can be finished
under that plan. Expressions are Spark SQL text over back-quoted column names; only the SQL front end writes them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

PLAN_VERSION = 1


@dataclass(frozen=True)
class Column:
    """One column of a source.

    `name` is the column's name in SQL, upper case unless it was back-quoted. `field` is the name as the statement
    wrote it, which is looked for in JSON values. `type` is a Spark SQL type name (`bigint`, `decimal(10,2)`). A `key`
    column is read from the record's key instead of its value.
    """

    name: str
    field: str
    type: str
    key: bool = False


@dataclass(frozen=True)
class Source:
    """A Kafka topic read as rows.

    Formats are `json`, `delimited`, `kafka` and for keys `none`; a delimiter is one character. A value of one column
    that is not `wrapped` is the value itself instead of an object. `timestamp` names the column that is ROWTIME
    (BIGINT, TIMESTAMP, or a string as `timestamp_format` says) in place of the record's own time. With `places` rows
    have the record's partition and offset as ROWPARTITION and ROWOFFSET.

    Of a windowed topic `window_type` is `tumbling`, `hopping` or `session`, else empty, and `window_ms` the size, 0 for
    sessions: keys end with the window's bounds (`pipelines/engine/windowed_keys.py`), rows have WINDOWSTART and WINDOWEND.
    """

    name: str
    topic: str
    value_format: str
    columns: tuple[Column, ...]
    key_format: str = "kafka"
    key_delimiter: str = ","
    value_delimiter: str = ","
    wrapped: bool = True
    timestamp: str | None = None
    timestamp_format: str | None = None
    places: bool = False
    window_type: str = ""
    window_ms: int = 0


@dataclass(frozen=True)
class GroupKey:
    """One expression of GROUP BY: `expression` over the source's columns, `name` is its column in the result."""

    name: str
    expression: str
    type: str


@dataclass(frozen=True)
class Aggregate:
    """One aggregate call. `function` is one of count_all, count, sum, min, max, avg, or of `ORDERED`; `name` is `A0`, …

    `type` is the type of what is accumulated: the result's type, for avg that of the sum, and that of the argument for
    those of `ORDERED`. `most` bounds how many values are kept; `nulls` counts null as a value.
    """

    name: str
    function: str
    argument: str | None
    type: str
    most: int | None = None
    nulls: bool = False


# Aggregates that have to see their rows one after the other; the second kind keeps values, in a list.
LATEST, EARLIEST, DEVIATION, VARIANCE = "latest_by_offset", "earliest_by_offset", "stddev_sample", "stddev_samp"
LISTS = (
    "attr",
    "collect_list",
    "collect_map",
    "collect_set",
    "count_distinct",
    "earliest_n",
    "latest_n",
    "topk",
    "topkdistinct",
    "histogram",
)
# Those of them whose state is an object.
OBJECTS = ("attr", "collect_map", "histogram")
ORDERED = frozenset((LATEST, EARLIEST, DEVIATION, VARIANCE, *LISTS))


@dataclass(frozen=True)
class Output:
    """One column of the result's value: `expression` over group keys' names and aggregates' names.

    `type` is given where a format has to know it: in the KAFKA format, and of bytes in DELIMITED.
    """

    name: str
    expression: str
    type: str = ""


@dataclass(frozen=True)
class Window:
    """How rows are windowed by their time. `kind` is tumbling or hopping; all times are in ms.

    A window holds times from its start, included, to start + `size_ms`, not included. Starts are multiples of
    `advance_ms`, which is `size_ms` for tumbling. A record counts in a window until the task's stream time has passed
    the window's end by `grace_ms`; the store keeps a window for `retention_ms` from its start.
    """

    kind: str
    size_ms: int
    advance_ms: int
    grace_ms: int
    retention_ms: int

    @property
    def overlap(self) -> int:
        """How many windows take one record at the most."""
        return -(-self.size_ms // self.advance_ms)


ON_COMMIT = "commit"
EVERY_RECORD = "every-record"


@dataclass(frozen=True)
class Query:
    """A continuous computation: source → filter → group → aggregate → result topic, with one store.

    Without aggregates it is stateless: every row that `where` lets through is a result of its own. `group_by` is then
    the result's key (or empty: no key), the outputs are over the source's columns, and there is one task per source
    partition, fixed at deploy: until then `tasks` is 0, and `output_partitions` too if it shall be as many.

    `emission` is `commit` (one result per changed key and batch) or `every-record` (one per input record).

    `key_format` is `kafka` (one group key: UTF-8, or 4- or 8-byte big-endian integer), `json` (the one group key, or an
    object of them), `delimited` or `none`. A query with `changelog` reads a table: a row that `where` does not let through
    is a tombstone, as a tombstone is, and an aggregation takes back what the row before it counted for. `timestamp` is
    an expression for the results' time in place of the row's. `having` is over group keys' names and aggregates' names.
    `tasks` is the number of state partitions.

    A stateless query that `keeps_window` reads a windowed source, and its results are in their row's window.

    `on_error` says what becomes of a record with which an expression fails: `dead-letter`, `stop`, or empty for what the
    driver's setting of this name says.

    `base64_keys`: BYTES in DELIMITED keys are base64, as they are read. Plans of before this field write them as they are.

    `tables` are arrays over the source's columns: a row becomes one for each of their items, side by side, which the
    outputs know by the array's name.
    """

    name: str
    sql: str
    source: Source
    where: str | None
    group_by: tuple[GroupKey, ...]
    aggregates: tuple[Aggregate, ...]
    having: str | None
    outputs: tuple[Output, ...]
    key_format: str
    output_topic: str
    output_partitions: int
    tasks: int
    window: Window | None = None
    emission: str = ON_COMMIT
    value_format: str = "json"
    key_delimiter: str = ","
    value_delimiter: str = ","
    wrapped: bool = True
    changelog: bool = False
    timestamp: str | None = None
    tables: tuple[Output, ...] = ()
    keeps_window: bool = False
    on_error: str = ""
    base64_keys: bool = False

    @property
    def stateless(self) -> bool:
        """Whether every result comes from one row alone."""
        return not self.aggregates

    @property
    def in_record_order(self) -> bool:
        """Whether rows are taken one after the other: windows need stream time at each, every-record results too.

        A table's changes do as well: each takes back what the one before it counted for.
        """
        one_by_one = self.window is not None or self.emission == EVERY_RECORD or self.changelog
        return not self.stateless and (one_by_one or any(a.function in ORDERED for a in self.aggregates))

    @property
    def store(self) -> str:
        """Name of the query's one store."""
        return self.name


# Fields that came later: a plan that does not use them keeps the text, and so the hash, that it had before.
_LATER_QUERY = (
    "window",
    "emission",
    "value_format",
    "key_delimiter",
    "value_delimiter",
    "wrapped",
    "changelog",
    "timestamp",
    "tables",
    "keeps_window",
    "on_error",
    "base64_keys",
)
_LATER_AGGREGATE = ("most", "nulls")
_LATER_SOURCE = (
    "key_format",
    "key_delimiter",
    "value_delimiter",
    "wrapped",
    "timestamp",
    "timestamp_format",
    "places",
    "window_type",
    "window_ms",
)


def _used(values: dict[str, Any], kind: type[Query | Source | Aggregate], later: tuple[str, ...]) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(kind)}
    return {name: value for name, value in values.items() if name not in later or value != defaults[name]}


def query_to_json(query: Query) -> str:
    """The canonical text of a plan: equal plans have equal texts."""
    used = _used(asdict(query), Query, _LATER_QUERY)
    used["outputs"] = [
        {name: value for name, value in output.items() if value or name != "type"} for output in used["outputs"]
    ]
    used["source"] = _used(used["source"], Source, _LATER_SOURCE)
    used["aggregates"] = [_used(aggregate, Aggregate, _LATER_AGGREGATE) for aggregate in used["aggregates"]]
    return json.dumps({"version": PLAN_VERSION, **used}, sort_keys=True, separators=(",", ":"))


def query_from_json(text: str) -> Query:
    """Inverse of `query_to_json`. Raises ValueError for another version."""
    found: dict[str, Any] = json.loads(text)
    version = found.pop("version", None)
    if version != PLAN_VERSION:
        raise ValueError(f"plan has version {version}, this program reads {PLAN_VERSION}")
    window = found.pop("window", None)
    return Query(
        source=source_from_fields(found.pop("source")),
        group_by=tuple(GroupKey(**g) for g in found.pop("group_by")),
        aggregates=tuple(Aggregate(**a) for a in found.pop("aggregates")),
        outputs=tuple(Output(**o) for o in found.pop("outputs")),
        tables=tuple(Output(**table) for table in found.pop("tables", ())),
        window=None if window is None else Window(**window),
        **found,
    )


def source_from_fields(fields: dict[str, Any]) -> Source:
    """A source from plain values, as `asdict` gives them."""
    return Source(**{**fields, "columns": tuple(Column(**column) for column in fields["columns"])})


def plan_hash(query: Query) -> str:
    """SHA-256 of the canonical text, in hex: the identity under which a batch was planned."""
    return hashlib.sha256(query_to_json(query).encode()).hexdigest()
