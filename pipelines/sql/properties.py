"""WITH (name = value, …): the properties of a stream or table."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot.tokenizer_core import TokenType

from pipelines.sql.dialect import whole_number
from pipelines.sql.error import Refusal, nearest
from pipelines.sql.names import topic_name
from pipelines.sql.script import Cursor

STREAM_PROPERTIES = ("KAFKA_TOPIC", "VALUE_FORMAT", "KEY_FORMAT")
TABLE_PROPERTIES = ("KAFKA_TOPIC", "PARTITIONS", "KEY_FORMAT", "VALUE_FORMAT")
NOT_YET = frozenset(
    [
        "CLEANUP_POLICY",
        "FORMAT",
        "KEY_DELIMITER",
        "KEY_SCHEMA_FULL_NAME",
        "KEY_SCHEMA_ID",
        "PARTITIONS",
        "REPLICAS",
        "RETENTION_MS",
        "TIMESTAMP",
        "TIMESTAMP_FORMAT",
        "VALUE_DELIMITER",
        "VALUE_SCHEMA_FULL_NAME",
        "VALUE_SCHEMA_ID",
        "WINDOW_SIZE",
        "WINDOW_TYPE",
        "WRAP_SINGLE_VALUE",
    ]
)
FORMATS = ("AVRO", "DELIMITED", "JSON", "JSON_SR", "KAFKA", "NONE", "PROTOBUF", "PROTOBUF_NOSR")
PARTITIONS_MAX = 1024


@dataclass(frozen=True)
class Property:
    """One property: its value (text of a string, or a number) and where name and value stand."""

    value: str | int
    at: int
    value_at: int


def read_properties(cursor: Cursor, known: tuple[str, ...]) -> dict[str, Property]:
    """The properties behind WITH, by name in upper case. Only names in `known` pass."""
    cursor.expect_type(TokenType.L_PAREN, "(")
    found: dict[str, Property] = {}
    while True:
        name = cursor.name("a property")
        key = name.text.upper()
        if key not in known:
            if key in NOT_YET:
                raise Refusal(name.at, f"property {key} is not supported here", f"supported: {', '.join(known)}")
            raise Refusal(name.at, f"unknown property {key[:50]}", nearest(key, known))
        if key in found:
            raise Refusal(name.at, f"property {key} is given twice")
        cursor.expect_type(TokenType.EQ, "=")
        value_at = cursor.at
        if text := cursor.accept_type(TokenType.STRING):
            found[key] = Property(text.text, name.at, value_at)
        else:
            number = cursor.expect_type(TokenType.NUMBER, "a string or a number")
            found[key] = Property(whole_number(number.text, value_at), name.at, value_at)
        if not cursor.accept_type(TokenType.COMMA):
            break
    cursor.expect_type(TokenType.R_PAREN, ") or ,")
    return found


def text_property(properties: dict[str, Property], name: str) -> tuple[str, int] | None:
    """Value and offset of a property that is a string, None if it is not given."""
    found = properties.get(name)
    if found is None:
        return None
    if not isinstance(found.value, str):
        raise Refusal(found.value_at, f"{name} needs a string")
    return found.value, found.value_at


def read_topic(properties: dict[str, Property]) -> tuple[str, int] | None:
    """KAFKA_TOPIC as a legal topic name, with its offset."""
    found = text_property(properties, "KAFKA_TOPIC")
    return (topic_name(*found), found[1]) if found else None


def read_format(properties: dict[str, Property], name: str, supported: tuple[str, ...]) -> str | None:
    """A format in lower case, None if it is not given."""
    found = text_property(properties, name)
    if found is None:
        return None
    text, at = found
    if text.lower() in supported:
        return text.lower()
    allowed = " or ".join(f"'{f}'" for f in supported)
    if text.upper() in FORMATS:
        raise Refusal(at, f"{name} '{text.lower()}' is not supported here", f"supported: {allowed}")
    raise Refusal(at, f"unknown format '{text[:50]}'", nearest(text, supported) or f"supported: {allowed}")


def read_partitions(properties: dict[str, Property]) -> int | None:
    """PARTITIONS, None if it is not given."""
    found = properties.get("PARTITIONS")
    if found is None:
        return None
    if not isinstance(found.value, int) or not 1 <= found.value <= PARTITIONS_MAX:
        raise Refusal(found.value_at, f"PARTITIONS needs a whole number from 1 to {PARTITIONS_MAX}")
    return found.value
