"""ksqlDB's settings that stand for what the WITH of a CREATE leaves out.

They become part of the statement's text, so that what is kept of it depends on no session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from pipelines.sql import Parsed
from pipelines.sql.formats import BARE_IF_SINGLE
from pipelines.sql.nodes import Call, Number, Text
from pipelines.sql.ordered import LIMITED
from pipelines.sql.printer import print_tree
from pipelines.sql.tree import CreateAs, CreateSource, Properties, Property

FORMATS = {
    "ksql.persistence.default.format.key": "KEY_FORMAT",
    "ksql.persistence.default.format.value": "VALUE_FORMAT",
}


LIMITS = {f"ksql.functions.{name.lower()}.limit": name for name in LIMITED}
PREFIX = "ksql.output.topic.name.prefix"
WRAPPING = "ksql.persistence.wrap.single.values"


_Tree = TypeVar("_Tree")


def with_defaults(parsed: Parsed, settings: Mapping[str, str]) -> str:
    """The statement's text; a CREATE with what the settings say where its WITH says nothing."""
    statement = parsed.statement
    if not isinstance(statement, CreateSource | CreateAs):
        return parsed.text
    given_limits = {name: settings.get(setting, "") for setting, name in LIMITS.items()}
    limits = {name: limit for name, limit in given_limits.items() if limit.isdecimal() and int(limit) > 0}
    limited = _limited(statement, limits) if limits else statement
    unchanged, statement = limited == statement, limited
    if statement.properties is None and isinstance(statement, CreateSource):  # it is refused as it is
        return parsed.text
    written = statement.properties or Properties((), at=statement.at)
    given = {item.name for item in written.items}
    missing = {}
    if isinstance(statement, CreateAs):
        if PREFIX in settings and "KAFKA_TOPIC" not in given:
            missing["KAFKA_TOPIC"] = settings[PREFIX] + statement.name.text
    else:
        missing = {
            name: settings[setting]
            for setting, name in FORMATS.items()
            if setting in settings and not given & {name, "FORMAT"}
        }
    if settings.get(WRAPPING, "").lower() == "false" and "WRAP_SINGLE_VALUE" not in given:
        missing["WRAP_SINGLE_VALUE"] = BARE_IF_SINGLE
    if not missing:
        return parsed.text if unchanged else print_tree(statement)
    added = tuple(Property(name, Text(value, at=written.at), at=written.at) for name, value in missing.items())
    return print_tree(replace(statement, properties=replace(written, items=written.items + added)))


def _limited(part: _Tree, limits: Mapping[str, str]) -> _Tree:
    """The tree with the limits behind the one argument of the aggregates that they are of."""
    if isinstance(part, tuple):
        return tuple(_limited(each, limits) for each in part)  # type: ignore[return-value]
    if not is_dataclass(part) or isinstance(part, type):
        return part
    if isinstance(part, Call) and part.function in limits and len(part.arguments) == 1:
        return replace(part, arguments=(*part.arguments, Number(limits[part.function], at=part.at)))
    found = {field.name: getattr(part, field.name) for field in fields(part) if field.init}
    return replace(part, **{name: _limited(value, limits) for name, value in found.items()})
