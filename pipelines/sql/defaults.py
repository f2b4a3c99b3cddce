"""ksqlDB's settings that stand for what the WITH of a CREATE leaves out.

They become part of the statement's text, so that what is kept of it depends on no session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipelines.sql import Parsed
from pipelines.sql.nodes import Text
from pipelines.sql.printer import print_tree
from pipelines.sql.tree import CreateSource, Property

FORMATS = {
    "ksql.persistence.default.format.key": "KEY_FORMAT",
    "ksql.persistence.default.format.value": "VALUE_FORMAT",
}


def with_defaults(parsed: Parsed, settings: Mapping[str, str]) -> str:
    """The statement's text; a CREATE over a topic with the formats of the settings where its WITH names none."""
    statement = parsed.statement
    if not isinstance(statement, CreateSource) or statement.properties is None:
        return parsed.text
    given = {item.name for item in statement.properties.items}
    missing = {
        name: settings[setting]
        for setting, name in FORMATS.items()
        if setting in settings and not given & {name, "FORMAT"}
    }
    if not missing:
        return parsed.text
    at = statement.properties.at
    added = tuple(Property(name, Text(value, at=at), at=at) for name, value in missing.items())
    properties = replace(statement.properties, items=statement.properties.items + added)
    return print_tree(replace(statement, properties=properties))
