"""Trees to text. What is printed is read back as an equal tree, and equal trees print alike.

One line, one space where one is needed, words in upper case, names in back-quotes only where they need them, a column
of CREATE as it was written, because that is its name in JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pipelines.sql import nodes as n
from pipelines.sql import tree as t
from pipelines.sql.names import DIGIT_NAME, NAME, RESERVED, Name, written_name
from pipelines.sql.nodes import Node


def print_tree(node: Node) -> str:
    """The text of a statement, a query or an expression, without the semicolon."""
    return _PRINTERS[type(node)](node)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(name: Name) -> str:
    return written_name(name.text)


def _back(name: str) -> str:
    return f"`{name}`"


def _list(parts: Sequence[Node]) -> str:
    return ", ".join(print_tree(part) for part in parts)


def _not(negated: bool) -> str:
    return " NOT" if negated else ""


# Expressions.


def _column(node: n.Column) -> str:
    return f"{_name(node.source)}.{_name(node.name)}" if node.source else _name(node.name)


def _sign(node: n.Sign) -> str:
    # Two signs in a row are kept apart: -- begins a comment.
    return node.operator + (" " if isinstance(node.operand, n.Sign) else "") + print_tree(node.operand)


def _binary(node: n.Binary) -> str:
    return f"{print_tree(node.left)} {node.operator} {print_tree(node.right)}"


def _connective(node: n.Connective) -> str:
    return f" {node.word} ".join(print_tree(operand) for operand in node.operands)


def _between(node: n.Between) -> str:
    low, high = print_tree(node.low), print_tree(node.high)
    return f"{print_tree(node.operand)}{_not(node.negated)} BETWEEN {low} AND {high}"


def _like(node: n.Like) -> str:
    escape = f" ESCAPE {print_tree(node.escape)}" if node.escape is not None else ""
    return f"{print_tree(node.operand)}{_not(node.negated)} LIKE {print_tree(node.pattern)}{escape}"


def _case(node: n.Case) -> str:
    whens = " ".join(f"WHEN {print_tree(b.condition)} THEN {print_tree(b.result)}" for b in node.branches)
    default = f" ELSE {print_tree(node.default)}" if node.default is not None else ""
    return f"CASE {whens}{default} END"


def _pairs(names: Iterable[str], values: Sequence[Node]) -> str:
    return ", ".join(f"{name} := {print_tree(value)}" for name, value in zip(names, values, strict=True))


def _type(node: n.TypeName) -> str:
    if node.names:
        fields = (f"{_name(name)} {_type(type_)}" for name, type_ in zip(node.names, node.inner, strict=True))
        return f"{node.word}<{', '.join(fields)}>"
    if node.inner:
        return f"{node.word}<{_list(node.inner)}>"
    return written_name(node.word) + (f"({', '.join(map(str, node.numbers))})" if node.numbers else "")


# Queries.


def _select(node: t.Select) -> str:
    parts = [f"SELECT {_list(node.items)} FROM {_name(node.source.name)}"]
    if node.source.alias:
        parts.append(_name(node.source.alias))
    if node.window:
        parts.append(_window(node.window))
    if node.where is not None:
        parts.append(f"WHERE {print_tree(node.where)}")
    if node.group_by:
        parts.append(f"GROUP BY {_list(node.group_by.expressions)}")
    if node.partition_by:
        parts.append(f"PARTITION BY {_list(node.partition_by.expressions)}")
    if node.having is not None:
        parts.append(f"HAVING {print_tree(node.having)}")
    if node.emit:
        parts.append(f"EMIT {node.emit}")
    if node.limit is not None:
        parts.append(f"LIMIT {node.limit}")
    return " ".join(parts)


def _item(node: t.Item) -> str:
    return print_tree(node.expression) + (f" AS {_name(node.alias)}" if node.alias else "")


def _duration(node: t.Duration) -> str:
    return f"{node.count} {node.unit}S"


def _window(node: t.Window) -> str:
    parts = [("" if node.kind == "SESSION" else "SIZE ") + _duration(node.size)]
    for word, duration in (("ADVANCE BY", node.advance), ("RETENTION", node.retention), ("GRACE PERIOD", node.grace)):
        if duration is not None:
            parts.append(f"{word} {_duration(duration)}")
    return f"WINDOW {node.kind} ({', '.join(parts)})"


# Statements.


def _with(properties: t.Properties | None) -> str:
    return "" if properties is None else f" WITH ({_list(properties.items)})"


def _head(node: t.CreateSource | t.CreateAs) -> str:
    replace = "OR REPLACE " if node.or_replace else ""
    return f"CREATE {replace}{node.kind} {'IF NOT EXISTS ' if node.if_not_exists else ''}{_name(node.name)}"


def _create_source(node: t.CreateSource) -> str:
    return _head(node) + (f" ({_list(node.columns)})" if node.columns else "") + _with(node.properties)


def _alter(node: t.AlterSource) -> str:
    return f"ALTER {node.kind} {_name(node.name)} {', '.join(f'ADD COLUMN {_column_def(c)}' for c in node.columns)}"


def _column_def(node: t.ColumnDef) -> str:
    bare = NAME.fullmatch(node.field) or DIGIT_NAME.fullmatch(node.field)
    plain = bare and node.field.upper() == node.name.text and node.name.text not in RESERVED
    role = f" HEADER({_text(node.header)})" if node.header is not None else f" {node.role}" if node.role else ""
    return f"{node.field if plain else f'`{node.field}`'} {_type(node.type)}{role}"


def _insert_values(node: t.InsertValues) -> str:
    columns = f" ({', '.join(_name(column) for column in node.columns)})" if node.columns else ""
    return f"INSERT INTO {_name(node.name)}{columns} VALUES ({_list(node.values)})"


def _drop(node: t.Drop) -> str:
    exists, topic = "IF EXISTS " if node.if_exists else "", " DELETE TOPIC" if node.delete_topic else ""
    return f"DROP {node.kind} {exists}{_name(node.name)}{topic}"


def _describe(node: t.Describe) -> str:
    return f"DESCRIBE {'FUNCTION ' if node.function else ''}{_name(node.name)}{' EXTENDED' if node.extended else ''}"


def _control(node: t.Control) -> str:
    return f"{node.action} {'ALL' if node.query is None else written_name(node.query)}"


def _explain(node: t.Explain) -> str:
    return f"EXPLAIN {print_tree(node.statement) if node.statement else written_name(node.query or '')}"


def _set(node: t.SetProperty) -> str:
    return f"UNSET {_text(node.name)}" if node.value is None else f"SET {_text(node.name)} = {_text(node.value)}"


def _variable(name: str) -> str:
    return name if NAME.fullmatch(name) and name.upper() not in RESERVED else f"`{name}`"


def _define(node: t.Define) -> str:
    name = _variable(node.name)
    return f"UNDEFINE {name}" if node.value is None else f"DEFINE {name} = {_text(node.value)}"


_PRINTERS: dict[type[Node], Callable[..., str]] = {
    n.Column: _column,
    n.Text: lambda node: _text(node.value),
    n.Number: lambda node: node.text,
    n.Null: lambda _: "NULL",
    n.Truth: lambda node: "TRUE" if node.value else "FALSE",
    n.Star: lambda _: "*",
    n.Paren: lambda node: f"({print_tree(node.inner)})",
    n.Sign: _sign,
    n.Not: lambda node: f"NOT {print_tree(node.operand)}",
    n.Binary: _binary,
    n.Connective: _connective,
    n.IsNull: lambda node: f"{print_tree(node.operand)} IS{_not(node.negated)} NULL",
    n.Between: _between,
    n.In: lambda node: f"{print_tree(node.operand)}{_not(node.negated)} IN ({_list(node.items)})",
    n.Like: _like,
    n.Case: _case,
    n.TypeName: _type,
    n.Cast: lambda node: f"CAST({print_tree(node.operand)} AS {_type(node.type)})",
    n.Index: lambda node: f"{print_tree(node.operand)}[{print_tree(node.index)}]",
    n.Field: lambda node: f"{print_tree(node.operand)}->{_name(node.name)}",
    n.ArrayOf: lambda node: f"ARRAY[{_list(node.items)}]",
    n.MapOf: lambda node: f"MAP({_pairs(map(print_tree, node.keys), node.values)})",
    n.StructOf: lambda node: f"STRUCT({_pairs(map(_name, node.names), node.values)})",
    n.Lambda: lambda node: f"({', '.join(map(_name, node.names))}) => {print_tree(node.body)}",
    n.Distinct: lambda node: f"{print_tree(node.left)} IS{_not(node.negated)} DISTINCT FROM {print_tree(node.right)}",
    n.Call: lambda node: f"{node.function}({_list(node.arguments)})",
    t.Select: _select,
    t.Item: _item,
    t.AllColumns: lambda node: (
        f"{print_tree(node.of)}->*" if node.of else f"{_name(node.source)}.*" if node.source else "*"
    ),
    t.Property: lambda node: (
        f"{node.name if NAME.fullmatch(node.name) else _back(node.name)} = {print_tree(node.value)}"
    ),
    t.ColumnDef: _column_def,
    t.CreateSource: _create_source,
    t.AlterSource: _alter,
    t.CreateAs: lambda node: f"{_head(node)}{_with(node.properties)} AS {_select(node.query)}",
    t.InsertSelect: lambda node: f"INSERT INTO {_name(node.name)}{_with(node.properties)} {_select(node.query)}",
    t.InsertValues: _insert_values,
    t.Drop: _drop,
    t.CreateType: lambda node: (
        f"CREATE TYPE {'IF NOT EXISTS ' if node.if_not_exists else ''}{_name(node.name)} AS {_type(node.type)}"
    ),
    t.DropType: lambda node: f"DROP TYPE {'IF EXISTS ' if node.if_exists else ''}{_name(node.name)}",
    t.Control: _control,
    t.Show: lambda node: f"SHOW {node.what}{' EXTENDED' if node.extended else ''}",
    t.Describe: _describe,
    t.Explain: _explain,
    t.Query: lambda node: _select(node.select),
    t.SetProperty: _set,
    t.Define: _define,
}
