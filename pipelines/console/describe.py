"""SHOW and DESCRIBE: tables about what is defined and deployed."""

from __future__ import annotations

from pipelines.console.result import Result
from pipelines.metastore.relations import SnapshotCatalogue
from pipelines.settings import Settings
from pipelines.sql.catalogue import Relation
from pipelines.sql.error import Refusal, nearest
from pipelines.sql.functions import AGGREGATES, SCALARS
from pipelines.sql.functions_table import TABLE_FUNCTIONS
from pipelines.sql.names import Name
from pipelines.sql.tree import Show
from statestore.kafka.admin import Admin


def show(statement: Show, catalogue: SnapshotCatalogue, desired: dict[str, str], settings: Settings) -> Result:
    """The answer to SHOW. `desired` says of each pipeline whether it is to run."""
    match statement.what:
        case "STREAMS" | "TABLES" as what:
            return _relations(catalogue, what.removesuffix("S"), extended=statement.extended)
        case "QUERIES":
            return _queries(catalogue, desired)
        case "TOPICS":
            topics = Admin(settings.kafka_config()).topics()
            rows = [(name, partitions) for name, partitions in sorted(topics.items()) if not name.startswith("__")]
            return Result(columns=("topic", "partitions"), rows=rows)
        case "TYPES":
            return Result(columns=("type", "is"), rows=sorted(catalogue.types().items()))
        case "FUNCTIONS":
            names = sorted([*SCALARS, *AGGREGATES, *TABLE_FUNCTIONS])
            return Result(columns=("function", "type"), rows=[(name, _type_of(name)) for name in names])
    raise Refusal(statement.at, f"SHOW {statement.what} is not executed here")


def _type_of(function: str) -> str:
    if function in TABLE_FUNCTIONS:
        return "table"
    return "aggregate" if function in AGGREGATES else "scalar"


def _relations(catalogue: SnapshotCatalogue, kind: str, *, extended: bool) -> Result:
    found = [relation for relation in catalogue.all() if relation.kind == kind]
    columns = ("name", "topic", "key format", "value format", "query")
    rows = [(r.name, r.source.topic, r.key_format, r.source.value_format, r.query) for r in found]
    if not extended:
        return Result(columns=columns, rows=rows)
    described = [(*row, ", ".join(_columns(r))) for row, r in zip(rows, found, strict=True)]
    return Result(columns=(*columns, "columns"), rows=described)


def _queries(catalogue: SnapshotCatalogue, desired: dict[str, str]) -> Result:
    rows = [
        (query_id, desired[pipeline], query.source.topic, query.output_topic, query.sql)
        for query_id, pipeline, query in catalogue.queries()
    ]
    return Result(columns=("query", "desired", "reads", "writes", "statement"), rows=rows)


def _columns(relation: Relation) -> list[str]:
    key = "KEY" if relation.kind == "STREAM" else "PRIMARY KEY"
    return [f"{c.name} {c.type.upper()}{f' {key}' if c.key else ''}" for c in relation.source.columns]


def describe_relation(relation: Relation, readers: list[str], *, extended: bool) -> Result:
    """Its columns; extended also where it comes from and who uses it."""
    rows = [("column", text) for text in _columns(relation)]
    if extended:
        rows += [
            ("kind", relation.kind),
            ("topic", relation.source.topic),
            ("key format", relation.key_format),
            ("value format", relation.source.value_format),
            ("filled by", relation.query or "others"),
            ("used by", ", ".join(readers) or "nobody"),
            ("statement", relation.sql),
        ]
    return Result(columns=("property", "value"), rows=rows)


def describe_function(name: Name) -> Result:
    """What is known about a function."""
    known = [*SCALARS, *AGGREGATES, *TABLE_FUNCTIONS]
    if name.text not in known:
        raise Refusal(name.at, f"unknown function {name.text}", nearest(name.text, known))
    scalar = SCALARS.get(name.text)
    if scalar is None:
        return Result(
            columns=("property", "value"),
            rows=[("function", name.text), ("type", _type_of(name.text)), ("arguments", "1")],
        )
    most = "any number" if scalar.most is None else str(scalar.most)
    arguments = str(scalar.least) if str(scalar.least) == most else f"{scalar.least} to {most}"
    return Result(
        columns=("property", "value"), rows=[("function", name.text), ("type", "scalar"), ("arguments", arguments)]
    )
