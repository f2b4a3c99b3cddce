"""A session: the statements about itself (variables, properties) and, for all others, the executor."""

from __future__ import annotations

from collections.abc import Iterator

from pipelines.console.result import Executor, Result
from pipelines.sql import Parsed, parse_script
from pipelines.sql.defaults import FORMATS
from pipelines.sql.error import nearest
from pipelines.sql.formats import KEY_FORMATS, VALUE_FORMATS
from pipelines.sql.tree import Define, SetProperty, Show
from statestore.errors import InvalidInput

_UNSET = ""
_SIDES = {"KEY_FORMAT": KEY_FORMATS, "VALUE_FORMAT": VALUE_FORMATS}
# Name, allowed values in lower case, meaning; the first value is the default.
PROPERTIES = {
    "isolation.level": (
        ("read_committed", "read_uncommitted"),
        "what a pull query sees: committed entries, or those of the running batch as well",
    ),
    **{
        setting: ((_UNSET, *_SIDES[name]), f"{name} of a CREATE over a topic whose WITH has none")
        for setting, name in FORMATS.items()
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
                    (name, self.properties.get(name, allowed[0]), ", ".join(filter(None, allowed)), meaning)
                    for name, (allowed, meaning) in PROPERTIES.items()
                ]
                return Result(columns=("property", "value", "allowed", "meaning"), rows=rows)
        return self.executor.execute(parsed, self.properties)

    def _set(self, name: str, value: str | None) -> Result:
        if name not in PROPERTIES:
            hint = nearest(name, PROPERTIES) or f"there is {', '.join(PROPERTIES)}"
            raise InvalidInput("property is unknown", property=name, hint=hint)
        if value is None:
            self.properties.pop(name, None)
            return Result(f"{name} is {PROPERTIES[name][0][0] or 'not set'} again")
        allowed = list(filter(None, PROPERTIES[name][0]))
        if value.lower() not in allowed:
            raise InvalidInput("value is not allowed", property=name, value=value, hint=f"use {' or '.join(allowed)}")
        self.properties[name] = value.lower()
        return Result(f"{name} is {value}")
