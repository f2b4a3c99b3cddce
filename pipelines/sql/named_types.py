"""Types that statements have named, and what stands for their names in statements that follow.

A name is replaced by its type before anything is planned, so what was defined with it does not change when it goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from pipelines.sql.nodes import TypeName
from pipelines.sql.read_type import read_type
from pipelines.sql.script import read_statements
from pipelines.sql.types import BY_NAME, NESTED

# The text of each type, by its name.
Types = Mapping[str, str]
_Tree = TypeVar("_Tree")
OWN = frozenset((*BY_NAME, *NESTED, "DECIMAL"))


def with_types(tree: _Tree, types: Types) -> _Tree:
    """The tree with its named types replaced, at their places."""
    return _replaced(tree, types) if types else tree


def _replaced(part: Any, types: Types) -> Any:
    if isinstance(part, tuple):
        return tuple(_replaced(each, types) for each in part)
    if isinstance(part, TypeName) and part.word in types and not part.inner and part.numbers is None:
        return _placed(read_type(read_statements(types[part.word])[0]), part.at)
    if not is_dataclass(part) or isinstance(part, type):
        return part
    found = {field.name: getattr(part, field.name) for field in fields(part)}
    changed = {name: _replaced(value, types) for name, value in found.items()}
    return replace(part, **{name: value for name, value in changed.items() if value is not found[name]})


def _placed(type_: TypeName, at: int) -> TypeName:
    """The type as if all of it stood at `at`."""
    names = tuple(replace(name, at=at) for name in type_.names)
    return replace(type_, at=at, inner=tuple(_placed(inner, at) for inner in type_.inner), names=names)
