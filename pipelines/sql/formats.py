"""How keys and values are written: the formats of a WITH, with ksqlDB's defaults and limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipelines.plan import Column, Source
from pipelines.sql.error import Refusal
from pipelines.sql.properties import Given, Properties, read_format, text_property
from pipelines.sql.types import SqlType, parse_type

KEY_FORMATS = ("kafka", "json", "delimited", "none")
VALUE_FORMATS = ("json", "delimited", "kafka", "none")
KAFKA_KEYS = ("string", "int", "bigint", "double")
KAFKA_VALUES = ("string", "int", "bigint", "double", "bytes")
# What WRAP_SINGLE_VALUE is where a session's setting says it: bare, if there is one column and the format is JSON.
BARE_IF_SINGLE = "single"
_DELIMITERS = {"SPACE": " ", "TAB": "\t"}


@dataclass(frozen=True)
class Formats:
    """See `plan.Source`. An empty format is not given."""

    key: str = ""
    value: str = ""
    key_delimiter: str = ","
    value_delimiter: str = ","
    wrapped: bool = True


def formats_of(source: Source) -> Formats:
    """Those of a source."""
    return Formats(source.key_format, source.value_format, source.key_delimiter, source.value_delimiter)


def read_formats(properties: Properties, inherited: Formats) -> Formats:
    """What a WITH says; a query's result has its source's formats where it says nothing."""
    both = properties.get("FORMAT")
    for name in ("KEY_FORMAT", "VALUE_FORMAT"):
        if both is not None and name in properties:
            told = f"Cannot supply both '{name}' and 'FORMAT' properties, as 'FORMAT' sets both key and value formats."
            message = f"{told} Either use just 'FORMAT', or use 'KEY_FORMAT' and 'VALUE_FORMAT'."
            raise Refusal(properties[name].at, message)
    given = properties if both is None else {**properties, "KEY_FORMAT": both, "VALUE_FORMAT": both}
    key = read_format(given, "KEY_FORMAT", KEY_FORMATS)
    value = read_format(given, "VALUE_FORMAT", VALUE_FORMATS)
    return Formats(
        key or inherited.key,
        value or inherited.value,
        _delimiter(properties, "KEY_DELIMITER", inherited.key_delimiter if key is None else ","),
        _delimiter(properties, "VALUE_DELIMITER", inherited.value_delimiter if value is None else ","),
        _wrapped(properties.get("WRAP_SINGLE_VALUE")),
    )


def checked(
    formats: Formats, columns: Sequence[Column], properties: Properties, at: int, what: str, *, computed: bool
) -> Formats:
    """The formats if the columns can be written in them. `what` is stream or table, `at` where columns are named.

    A `computed` relation without keys takes no key format; a stream that is read has one for the queries over it.
    """
    keys = [column for column in columns if column.key]
    values = [column for column in columns if not column.key]
    given = properties.get("KEY_FORMAT") or properties.get("FORMAT")
    if not keys:
        if computed and "KEY_FORMAT" in properties and formats.key != "none":
            raise Refusal(given.at if given else at, f"Key format specified for {what} without key columns")
    elif formats.key == "none":
        if given is not None:
            raise Refusal(given.value_at, _unwritable("none", keys, KAFKA_KEYS)[0])
        formats = replace(formats, key="kafka")
    for side in ("key", "value"):
        form = getattr(formats, side)
        if (delimiter := properties.get(f"{side.upper()}_DELIMITER")) is not None and form != "delimited":
            raise Refusal(delimiter.at, f"{form.upper()} does not support the following configs: [delimiter]")
    _check(formats.key, keys, KAFKA_KEYS, at, "key")
    _check(formats.value, values, KAFKA_VALUES, at, "value")
    wrapping = properties.get("WRAP_SINGLE_VALUE")
    if wrapping is not None and wrapping.value == BARE_IF_SINGLE:
        formats = replace(formats, wrapped=formats.value != "json" or len(values) != 1)
    elif wrapping is not None:
        _check_wrapping(formats, values, wrapping)
    return formats


def _check_wrapping(formats: Formats, values: Sequence[Column], wrapping: Given) -> None:
    if len(values) != 1:
        raise Refusal(wrapping.at, "'WRAP_SINGLE_VALUE' is only valid for single-field value schemas")
    if formats.value in ("delimited", "kafka"):
        feature = "WRAP_SINGLES" if formats.wrapped else "UNWRAP_SINGLES"
        if feature == "WRAP_SINGLES":
            message = f"Format '{formats.value.upper()}' does not support 'WRAP_SINGLE_VALUE' set to 'true'"
            raise Refusal(wrapping.at, message)


def _check(form: str, columns: Sequence[Column], kafka: tuple[str, ...], at: int, side: str) -> None:
    for column in columns if side == "key" else ():
        if "map<" in column.type:
            told = "they may lead to unexpected behavior due to inconsistent serialization"
            shown = f"Key column name: `{column.name}`. Column type: {parse_type(column.type).sql}"
            see = "See https://github.com/confluentinc/ksql/issues/6621 for more."
            message = f"Map keys, including types that contain maps, are not supported as {told}. {shown}. {see}"
            raise Refusal(at, message)
    reason, hint = _unwritable(form, columns, kafka)
    if reason:
        schema = f"format: {form.upper()} schema: Persistence{{columns={_listed(columns)}, features=[]}}"
        message = f"{side.capitalize()} format does not support schema. {schema} reason: {reason}"
        raise Refusal(at, message, f"write WITH ({side}_format='json')" if hint else None)


def _listed(columns: Sequence[Column]) -> str:
    shown = (f"`{column.name}` {parse_type(column.type).sql}{' KEY' if column.key else ''}" for column in columns)
    return f"[{', '.join(shown)}]"


def _unwritable(form: str, columns: Sequence[Column], kafka: tuple[str, ...]) -> tuple[str, bool]:
    """Why the columns cannot be written in the format, empty if they can, and whether JSON could."""
    if form == "none" and columns:
        return f"The 'NONE' format can only be used when no columns are defined. Got: {_listed(columns)}", False
    if form == "kafka" and len(columns) > 1:
        return f"The 'KAFKA' format only supports a single field. Got: {_listed(columns)}", True
    for column in columns:
        type_ = parse_type(column.type)
        kind = type_.sql.partition("(")[0].partition("<")[0]
        if (form == "kafka" and column.type not in kafka) or (form == "delimited" and type_.is_nested):
            return f"The '{form.upper()}' format does not support type '{kind}', column: `{column.name}`", True
        if form == "json" and any(part.inner[0].kind != "string" for part in _maps(type_)):
            return f"JSON only supports MAP types with STRING keys, column: `{column.name}`", False
    return "", False


def _maps(type_: SqlType) -> Iterator[SqlType]:
    """The maps in a type."""
    if type_.kind == "map":
        yield type_
    for inner in type_.inner:
        yield from _maps(inner)


def _wrapped(given: Given | None) -> bool:
    if given is None:
        return True
    text = str(given.value).lower()
    if text not in ("true", "false", BARE_IF_SINGLE):
        raise Refusal(given.value_at, "WRAP_SINGLE_VALUE is true or false")
    return text == "true"


def _delimiter(properties: Properties, name: str, default: str) -> str:
    found = text_property(properties, name)
    if found is None:
        return default
    text, at = found
    text = _DELIMITERS.get(text.upper(), text)
    if not found[0].strip():
        told = "Delimiter cannot be empty, if you meant to have a tab or space for delimiter, please use the special values"
        raise _wrong_delimiter(name, at, f"{told} 'TAB' or 'SPACE'")
    if len(text) != 1:
        told = f"Invalid delimiter value: '{found[0]}'. Delimiter must be a single character or TAB,SPACE"
        raise _wrong_delimiter(name, at, told)
    return text


def _wrong_delimiter(name: str, at: int, told: str) -> Refusal:
    return Refusal(at, f"Configuration {name} is invalid: {told} Example valid value: ';'")
