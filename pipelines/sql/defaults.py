"""ksqlDB's settings that stand for what the WITH of a CREATE leaves out.

They become part of the statement's text, so that what is kept of it depends on no session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipelines.sql import Parsed
from pipelines.sql.formats import BARE_IF_SINGLE
from pipelines.sql.nodes import Text
from pipelines.sql.printer import print_tree
from pipelines.sql.tree import CreateAs, CreateSource, Properties, Property

FORMATS = {
    "ksql.persistence.default.format.key": "KEY_FORMAT",
    "ksql.persistence.default.format.value": "VALUE_FORMAT",
}


PREFIX = "ksql.output.topic.name.prefix"
WRAPPING = "ksql.persistence.wrap.single.values"


def with_defaults(parsed: Parsed, settings: Mapping[str, str]) -> str:
    """The statement's text; a CREATE with what the settings say where its WITH says nothing."""
    statement = parsed.statement
    if not isinstance(statement, CreateSource | CreateAs):
        return parsed.text
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
        return parsed.text
    added = tuple(Property(name, Text(value, at=written.at), at=written.at) for name, value in missing.items())
    return print_tree(replace(statement, properties=replace(written, items=written.items + added)))
