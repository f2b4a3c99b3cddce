"""WITH (name = value, …): the properties of a stream or table."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.sql.error import Refusal, nearest
from pipelines.sql.names import topic_name
from pipelines.sql.nodes import Node, Number, Text, Truth
from pipelines.sql.read_type import whole_number
from pipelines.sql.tree import UNITS_MS
from pipelines.sql.tree import Properties as TreeProperties

FORMAT_PROPERTIES = ("FORMAT", "KEY_FORMAT", "VALUE_FORMAT", "KEY_DELIMITER", "VALUE_DELIMITER", "WRAP_SINGLE_VALUE")
TIME_PROPERTIES = ("TIMESTAMP", "TIMESTAMP_FORMAT")
RESULT_PROPERTIES = ("KAFKA_TOPIC", "PARTITIONS", *FORMAT_PROPERTIES, *TIME_PROPERTIES)
SOURCE_PROPERTIES = (*RESULT_PROPERTIES, "WINDOW_TYPE", "WINDOW_SIZE")
QUERY_PROPERTIES = (*RESULT_PROPERTIES, "EMIT", "ON_ERROR")
INSERT_PROPERTIES = ("QUERY_ID", "ON_ERROR")
WINDOW_TYPES = ("SESSION", "HOPPING", "TUMBLING")
EMISSIONS = ("commit", "every-record")
ON_ERRORS = ("dead-letter", "stop")
NOT_YET = frozenset(
    [
        "CLEANUP_POLICY",
        "KEY_SCHEMA_FULL_NAME",
        "KEY_SCHEMA_ID",
        "REPLICAS",
        "RETENTION_MS",
        "VALUE_SCHEMA_FULL_NAME",
        "VALUE_SCHEMA_ID",
        "WINDOW_SIZE",
        "WINDOW_TYPE",
    ]
)
FORMATS = ("AVRO", "DELIMITED", "JSON", "JSON_SR", "KAFKA", "NONE", "PROTOBUF", "PROTOBUF_NOSR")
PARTITIONS_MAX = 1024


@dataclass(frozen=True)
class Given:
    """One property: its value (a string, a whole number as int, any other literal as None) and where it stands."""

    value: str | int | None
    at: int
    value_at: int


Properties = dict[str, Given]


def check_properties(properties: TreeProperties | None, known: tuple[str, ...]) -> Properties:
    """The properties of a WITH by name. Only names in `known` pass, each once."""
    found: Properties = {}
    for item in properties.items if properties is not None else ():
        if item.name not in known:
            if item.name in NOT_YET:
                hint = f"supported: {', '.join(known)}"
                raise Refusal(item.at, f"property {item.name} is not supported here", hint)
            raise Refusal(item.at, f"unknown property {item.name[:50]}", nearest(item.name, known))
        if item.name in found:
            raise Refusal(item.at, f"property {item.name} is given twice")
        found[item.name] = Given(_plain(item.value), item.at, item.value.at)
    return found


def _plain(value: Node) -> str | int | None:
    if isinstance(value, Number):
        return whole_number(value.text, value.at)
    if isinstance(value, Truth):
        return str(value.value).lower()
    return value.value if isinstance(value, Text) else None


def text_property(properties: Properties, name: str) -> tuple[str, int] | None:
    """Value and offset of a property that is a string, None if it is not given."""
    found = properties.get(name)
    if found is None:
        return None
    if not isinstance(found.value, str):
        raise Refusal(found.value_at, f"{name} needs a string")
    return found.value, found.value_at


def read_topic(properties: Properties) -> tuple[str, int] | None:
    """KAFKA_TOPIC as a legal topic name, with its offset."""
    found = text_property(properties, "KAFKA_TOPIC")
    return (topic_name(*found), found[1]) if found else None


def read_format(properties: Properties, name: str, supported: tuple[str, ...]) -> str | None:
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
    raise Refusal(at, f"Unknown format: {text[:50].upper()}", nearest(text, supported) or f"supported: {allowed}")


def read_partitions(properties: Properties) -> int | None:
    """PARTITIONS, None if it is not given."""
    found = properties.get("PARTITIONS")
    if found is None:
        return None
    if not isinstance(found.value, int) or not 1 <= found.value <= PARTITIONS_MAX:
        raise Refusal(found.value_at, f"PARTITIONS needs a whole number from 1 to {PARTITIONS_MAX}")
    return found.value


def read_window(properties: Properties) -> tuple[str, int]:
    """WINDOW_TYPE in lower case, empty if it is not given, and WINDOW_SIZE in ms, which sessions have not."""
    type_, size = text_property(properties, "WINDOW_TYPE"), text_property(properties, "WINDOW_SIZE")
    if type_ is None:
        if size is not None:
            raise Refusal(size[1], "WINDOW_SIZE needs WINDOW_TYPE")
        return "", 0
    kind, at = type_[0].upper(), type_[1]
    if kind not in WINDOW_TYPES:
        told = f"Configuration WINDOW_TYPE is invalid: Invalid value {type_[0][:50]} for configuration WINDOW_TYPE"
        raise Refusal(
            at, f"{told}: String must be one of: {', '.join(WINDOW_TYPES)}, null", nearest(kind, WINDOW_TYPES)
        )
    if kind == "SESSION":
        if size is not None:
            raise Refusal(size[1], "'WINDOW_SIZE' should not be set for SESSION windows.")
        return "session", 0
    if size is None:
        told = f"{kind} windows require 'WINDOW_SIZE' to be provided in the WITH clause."
        raise Refusal(at, f"{told} For example: 'WINDOW_SIZE'='10 SECONDS'")
    return kind.lower(), _duration_ms(*size)


def _duration_ms(text: str, at: int) -> int:
    words = text.split()
    if len(words) != 2:
        raise _wrong_duration(text, at, f"Expected 2 tokens, got: {len(words)}")
    if not (words[0].isascii() and words[0].isdigit()):
        raise _wrong_duration(text, at, f"Size must be numeric: '{words[0]}'")
    unit = words[1].upper()
    if unit.removesuffix("S") not in UNITS_MS:
        raise _wrong_duration(text, at, f"Unknown time unit: '{unit}'")
    size = whole_number(words[0], at) * UNITS_MS[unit.removesuffix("S")]
    if size < 1:
        raise _wrong_duration(text, at, "A window's size is at least 1 millisecond")
    return size


def _wrong_duration(text: str, at: int, told: str) -> Refusal:
    hint = f"units are {', '.join(UNITS_MS)}"
    return Refusal(at, f"Configuration WINDOW_SIZE is invalid: Invalid duration: '{text[:50]}'. {told}", hint)


def read_emission(properties: Properties) -> str:
    """EMIT: one result per changed key and commit, or one per record."""
    return _one_of(properties, "EMIT", EMISSIONS) or EMISSIONS[0]


def read_on_error(properties: Properties) -> str:
    """ON_ERROR: what becomes of a record with which an expression fails. Empty if it is not given."""
    return _one_of(properties, "ON_ERROR", ON_ERRORS)


def _one_of(properties: Properties, name: str, allowed: tuple[str, ...]) -> str:
    """A text in lower case, which must be one of these; empty if it is not given."""
    found = text_property(properties, name)
    if found is None:
        return ""
    text, at = found
    if text.lower() not in allowed:
        told = " or ".join(f"'{one}'" for one in allowed)
        raise Refusal(at, f"{name} is {told}", nearest(text, allowed))
    return text.lower()
