"""Statements as trees of our own: what the text says, before anything of it is looked up.

A statement that is in the grammar and has no meaning here yet (a window, a join) is still a tree wherever the reader
knows it: what cannot be done is refused by the planner, with the tree's offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as place

from pipelines.sql.names import Name
from pipelines.sql.nodes import Node, Null, Number, Text, Truth, TypeName

STREAM = "STREAM"
TABLE = "TABLE"
CHANGES = "CHANGES"
FINAL = "FINAL"


@dataclass(frozen=True)
class Property(Node):
    """`name = value` of a WITH; the name in upper case, a number with its sign."""

    name: str
    value: Text | Number | Truth | Null


@dataclass(frozen=True)
class Properties(Node):
    """WITH (…). A statement without it has None."""

    items: tuple[Property, ...]


@dataclass(frozen=True)
class ColumnDef(Node):
    """A column of CREATE: `role` is empty, KEY, PRIMARY KEY or HEADERS; `header` names one header of HEADER('…').

    `field` is the name as written, which is looked for in JSON values.
    """

    name: Name
    field: str
    type: TypeName
    role: str = ""
    header: str | None = None
    role_at: int = place(default=0, compare=False)


@dataclass(frozen=True)
class Item(Node):
    """One expression of SELECT with its alias."""

    expression: Node
    alias: Name | None


@dataclass(frozen=True)
class AllColumns(Node):
    """`*`, `source.*`, or with `of` all fields of a struct, `struct->*`."""

    source: Name | None
    of: Node | None = None


@dataclass(frozen=True)
class From(Node):
    """The one source of a query with its alias."""

    name: Name
    alias: Name | None


@dataclass(frozen=True)
class Duration(Node):
    """`10 MINUTES`: the unit in upper case and the singular."""

    count: int
    unit: str

    @property
    def ms(self) -> int:
        """The duration in milliseconds."""
        return self.count * UNITS_MS[self.unit]


UNITS_MS = {"MILLISECOND": 1, "SECOND": 1_000, "MINUTE": 60_000, "HOUR": 3_600_000, "DAY": 86_400_000}


@dataclass(frozen=True)
class Window(Node):
    """WINDOW TUMBLING, HOPPING or SESSION. `size` is a session's gap; `advance` is of HOPPING alone."""

    kind: str
    size: Duration
    advance: Duration | None = None
    retention: Duration | None = None
    grace: Duration | None = None


@dataclass(frozen=True)
class Clause(Node):
    """GROUP BY or PARTITION BY: its expressions, `at` the offset of the clause."""

    expressions: tuple[Node, ...]


@dataclass(frozen=True)
class Select(Node):
    """A query. `emit` is CHANGES, FINAL or None (a pull query); `end` is the offset behind its last token.

    `tail_at` is where GROUP BY stands or would stand.
    """

    items: tuple[Item | AllColumns, ...]
    source: From
    window: Window | None = None
    where: Node | None = None
    group_by: Clause | None = None
    partition_by: Clause | None = None
    having: Node | None = None
    emit: str | None = None
    limit: int | None = None
    tail_at: int = place(default=0, compare=False)
    emit_at: int = place(default=0, compare=False)
    limit_at: int = place(default=0, compare=False)


@dataclass(frozen=True)
class Statement(Node):
    """Any statement."""


@dataclass(frozen=True)
class CreateSource(Statement):
    """CREATE STREAM or TABLE over a topic. `columns` is None if none are given."""

    kind: str
    name: Name
    columns: tuple[ColumnDef, ...] | None
    properties: Properties | None
    or_replace: bool = False
    if_not_exists: bool = False
    columns_at: int = place(default=0, compare=False)
    end: int = place(default=0, compare=False)


@dataclass(frozen=True)
class AlterSource(Statement):
    """ALTER STREAM or TABLE: columns that are added behind the others."""

    kind: str
    name: Name
    columns: tuple[ColumnDef, ...]


@dataclass(frozen=True)
class CreateAs(Statement):
    """CREATE STREAM or TABLE … AS SELECT."""

    kind: str
    name: Name
    properties: Properties | None
    query: Select
    or_replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True)
class InsertSelect(Statement):
    """INSERT INTO … SELECT."""

    name: Name
    properties: Properties | None
    query: Select


@dataclass(frozen=True)
class InsertValues(Statement):
    """INSERT INTO … VALUES. Without a list of columns, `columns` is None and means all in their order."""

    name: Name
    columns: tuple[Name, ...] | None
    values: tuple[Node, ...]


@dataclass(frozen=True)
class Drop(Statement):
    """DROP STREAM or TABLE."""

    kind: str
    name: Name
    if_exists: bool
    delete_topic: bool


@dataclass(frozen=True)
class CreateType(Statement):
    """CREATE TYPE name AS type: a name for a type, in statements that follow."""

    name: Name
    type: TypeName
    if_not_exists: bool = False


@dataclass(frozen=True)
class DropType(Statement):
    """DROP TYPE. What was defined with it stays."""

    name: Name
    if_exists: bool


@dataclass(frozen=True)
class Control(Statement):
    """TERMINATE, PAUSE or RESUME of one query by its id in upper case, or of all (`query` is None)."""

    action: str
    query: str | None


@dataclass(frozen=True)
class Show(Statement):
    """SHOW or LIST of STREAMS, TABLES, QUERIES, TOPICS, PROPERTIES, FUNCTIONS, VARIABLES or TYPES."""

    what: str
    extended: bool = False


@dataclass(frozen=True)
class Describe(Statement):
    """DESCRIBE of a stream or table, or of a function."""

    name: Name
    extended: bool = False
    function: bool = False


@dataclass(frozen=True)
class Explain(Statement):
    """EXPLAIN of a statement, or of a running query by its id."""

    statement: Statement | None
    query: str | None


@dataclass(frozen=True)
class Query(Statement):
    """A SELECT on its own: a pull query, or with EMIT CHANGES a push query."""

    select: Select


@dataclass(frozen=True)
class SetProperty(Statement):
    """SET 'name' = 'value'; UNSET has no value."""

    name: str
    value: str | None


@dataclass(frozen=True)
class Define(Statement):
    """DEFINE name = 'value'; UNDEFINE has no value. `${name}` in later statements stands for the value."""

    name: str
    value: str | None
