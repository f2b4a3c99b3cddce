"""Records of a test as JSON has them: topic, key, value, timestamp, window and headers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statestore.errors import InvalidInput

FIELDS = ("topic", "key", "value", "timestamp", "window", "headers")


@dataclass(frozen=True)
class Window:
    """The window of a key, in ms; `end` is not included. A session's end is."""

    start: int
    end: int


@dataclass(frozen=True)
class Record:
    """Key and value are JSON values; `timestamp` is in ms, None where the test does not say. `headers` are pairs."""

    topic: str
    key: Any = None
    value: Any = None
    timestamp: int | None = None
    window: Window | None = None
    headers: tuple[tuple[str, str | None], ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """As a file has it."""
        fields: dict[str, Any] = {"topic": self.topic, "key": self.key, "value": self.value}
        if self.timestamp is not None:
            fields["timestamp"] = self.timestamp
        if self.window is not None:
            fields["window"] = {"start": self.window.start, "end": self.window.end, "type": "time"}
        if self.headers is not None:
            fields["headers"] = [{"KEY": key, "VALUE": value} for key, value in self.headers]
        return fields


def read_records(path: Path, name: str) -> list[Record]:
    """The list `name` of a file. Raises `InvalidInput` for a file that is not of the format."""
    try:
        # Numbers keep their digits: a decimal must not go through a double.
        content = json.loads(path.read_text(), parse_float=Number)
    except (OSError, ValueError) as error:
        raise InvalidInput("records cannot be read", file=path, reason=str(error)) from error
    if not isinstance(content, dict) or not isinstance(content.get(name), list):
        raise InvalidInput("records are not of the format", file=path, hint=f'write {{"{name}": [{{"topic": …}}]}}')
    return [_record(fields, path) for fields in content[name]]


class Number(float):
    """A number with the text that it was written with."""

    text: str

    def __new__(cls, text: str) -> Number:
        """A float that remembers its text."""
        number = super().__new__(cls, text)
        number.text = text
        return number


class Delimited(str):
    """A line of fields in the format DELIMITED, with what is between them."""

    delimiter: str

    def __new__(cls, text: str, delimiter: str) -> Delimited:
        """A text that knows its delimiter."""
        line = super().__new__(cls, text)
        line.delimiter = delimiter
        return line

    @property
    def bare(self) -> str:
        """The line without quotes around its first field, if that can be read without them."""
        mark = re.escape(self.delimiter)
        return re.sub(rf'^"([^"\r\n{mark}]+)"(?={mark}|$)', r"\1", self)


def _record(fields: Any, path: Path) -> Record:
    if not isinstance(fields, dict) or not isinstance(fields.get("topic"), str):
        raise InvalidInput("record has no topic", file=path, record=str(fields)[:80])
    timestamp = fields.get("timestamp")
    return Record(
        fields["topic"],
        fields.get("key"),
        fields.get("value"),
        None if timestamp is None else int(timestamp),
        _window(fields.get("window"), path),
        _headers(fields.get("headers"), path),
    )


def _window(window: Any, path: Path) -> Window | None:
    if window is None:
        return None
    try:
        return Window(int(window["start"]), int(window["end"]))
    except (TypeError, KeyError, ValueError):
        raise InvalidInput("window needs start and end", file=path, window=str(window)[:80]) from None


def _headers(headers: Any, path: Path) -> tuple[tuple[str, str | None], ...] | None:
    if headers is None:
        return None
    try:
        named = ({str(name).upper(): value for name, value in header.items()} for header in headers)
        return tuple((str(header["KEY"]), header.get("VALUE")) for header in named)
    except (TypeError, KeyError, AttributeError):
        raise InvalidInput("headers are a list of KEY and VALUE", file=path, headers=str(headers)[:80]) from None
