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
    if statement.properties is None and isinstance(statement, CreateSource):  # it is refused as it is
        return parsed.text
    limits = _limits(settings)
    changed = _limited(statement, limits) if limits else statement
    written = changed.properties or Properties((), at=changed.at)
    missing = _missing(changed, {item.name for item in written.items}, settings)
    if missing:
        added = tuple(Property(name, Text(value, at=written.at), at=written.at) for name, value in missing.items())
        changed = replace(changed, properties=replace(written, items=written.items + added))
    return parsed.text if changed == statement else print_tree(changed)


def _missing(statement: CreateSource | CreateAs, given: set[str], settings: Mapping[str, str]) -> dict[str, str]:
    """Properties that the settings say and WITH does not."""
    missing = {}
    if isinstance(statement, CreateAs):
        if PREFIX in settings and "KAFKA_TOPIC" not in given:
            missing["KAFKA_TOPIC"] = settings[PREFIX] + statement.name.text
    else:
        for setting, name in FORMATS.items():
            if setting in settings and not given & {name, "FORMAT"}:
                missing[name] = settings[setting]
    if settings.get(WRAPPING, "").lower() == "false" and "WRAP_SINGLE_VALUE" not in given:
        missing["WRAP_SINGLE_VALUE"] = BARE_IF_SINGLE
    return missing


def _limits(settings: Mapping[str, str]) -> dict[str, str]:
    """How many values each of the collecting aggregates keeps, where a setting says so."""
    said = {name: settings.get(setting, "") for setting, name in LIMITS.items()}
    return {name: limit for name, limit in said.items() if limit.isdecimal() and int(limit) > 0}


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
