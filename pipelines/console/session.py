"""A session: the statements about itself (variables, properties) and, for all others, the executor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.console.result import Executor, Result
from pipelines.sql import Parsed, parse_script
from pipelines.sql.defaults import FORMATS, LIMITS, PREFIX, WRAPPING
from pipelines.sql.error import nearest
from pipelines.sql.formats import KEY_FORMATS, VALUE_FORMATS
from pipelines.sql.tree import Define, SetProperty, Show
from statestore.errors import InvalidInput

_SIDES = {"KEY_FORMAT": KEY_FORMATS, "VALUE_FORMAT": VALUE_FORMATS}


@dataclass(frozen=True)
class _Property:
    """`values` are the allowed ones, in lower case; otherwise `pattern` says which are, and `allowed` says it in words."""

    meaning: str
    default: str = ""
    values: tuple[str, ...] = ()
    pattern: str = ""
    words: str = ""

    @property
    def allowed(self) -> str:
        return self.words or ", ".join(self.values)

    def read(self, value: str) -> str | None:
        """The value as it is kept; None if it is not allowed."""
        if self.values:
            return value.lower() if value.lower() in self.values else None
        return value if re.fullmatch(self.pattern, value) else None


PROPERTIES = {
    "isolation.level": _Property(
        "what a pull query sees: committed entries, or those of the running batch as well",
        default="read_committed",
        values=("read_committed", "read_uncommitted"),
    ),
    **{
        setting: _Property(f"{name} of a CREATE over a topic whose WITH has none", values=tuple(_SIDES[name]))
        for setting, name in FORMATS.items()
    },
    PREFIX: _Property(
        "what stands before the name of a result's topic where WITH names none",
        pattern=r"[a-zA-Z0-9._-]{1,100}",
        words="letters, digits, '.', '_' and '-'",
    ),
    WRAPPING: _Property(
        "false: a JSON value of one column is the bare value unless WITH says otherwise",
        default="true",
        values=("true", "false"),
    ),
    **{
        setting: _Property(
            f"how many values {name} keeps, the first ones", pattern=r"0*[1-9][0-9]{0,8}", words="a number above 0"
        )
        for setting, name in LIMITS.items()
    },
}


class Session:
    """Properties and variables of one person. A script runs until its first error."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.variables: dict[str, str] = {}
        self.properties: dict[str, str] = {}

    def run(self, text: str) -> Iterator[tuple[Parsed, Result]]:
        """Execute the statements of the text one after the other. Raises what the first failing one raises."""
        for parsed in parse_script(text, self.variables):
            yield parsed, self._execute(parsed)

    def _execute(self, parsed: Parsed) -> Result:
        match parsed.statement:
            case SetProperty(name=name, value=value):
                return self._set(name, value)
            case Define(name=name, value=value):
                return Result(f"variable {name} is {'gone' if value is None else 'defined'}")
            case Show(what="VARIABLES"):
                return Result(columns=("variable", "value"), rows=sorted(self.variables.items()))
            case Show(what="PROPERTIES"):
                rows = [
                    (name, self.properties.get(name, one.default), one.allowed, one.meaning)
                    for name, one in PROPERTIES.items()
                ]
                return Result(columns=("property", "value", "allowed", "meaning"), rows=rows)
        return self.executor.execute(parsed, self.properties)

    def _set(self, name: str, value: str | None) -> Result:
        if name not in PROPERTIES:
            hint = nearest(name, PROPERTIES) or f"there is {', '.join(PROPERTIES)}"
            raise InvalidInput("property is unknown", property=name, hint=hint)
        known = PROPERTIES[name]
        if value is None:
            self.properties.pop(name, None)
            return Result(f"{name} is {known.default or 'not set'} again")
        kept = known.read(value)
        if kept is None:
            raise InvalidInput("value is not allowed", property=name, value=value, hint=f"allowed: {known.allowed}")
        self.properties[name] = kept
        return Result(f"{name} is {kept}")
