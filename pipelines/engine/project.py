"""The results of a stateless query in the worker that decoded its rows: what `projection.py` says in SQL, without the JVM.

    decoded rows ─ WHERE ─► key, result as JSON, time ─► WRITE
                 └ bad ───► dead letter ───────────────►

Spark then sees one row a task, what WRITE says at its end. Only where every step is sure to give what Spark gives: results
that are JSON objects, expressions that `columnar.py` knows, no tables, and rows that stand for themselves. Rows stay in
their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.blockvalues import NULL_VALUE
from pipelines.engine.columnar import Columnar, columnar, condition
from pipelines.engine.combine import KEY_FORMATS, KEYS, expression_types, group_column
from pipelines.engine.deadletters import dead_letters
from pipelines.engine.jsontext import json_objects
from pipelines.engine.keybytes import KeyBytes, key_bytes_of
from pipelines.plan import Query

_TYPES = (*KEYS, pa.bool_())


@dataclass(frozen=True)
class Project:
    """How rows of one plan become results. `keys` are the parts of a result's key, `value_keyed` tells whether one of
    them is of the value; `key_bytes` writes them, None where results have no key."""

    where: Columnar | None
    keys: tuple[Columnar, ...]
    value_keyed: bool
    key_bytes: KeyBytes | None
    outputs: tuple[tuple[str, Columnar], ...]

    def results(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Decoded rows with their partition, as the rows that WRITE takes: what `ProjectionJob.project` gives."""
        errors = rows.column("__error")
        all_good = errors.null_count == len(errors)
        if self.where is not None:
            shown = self.where.column(rows).fill_null(False)
            if all_good:
                rows = rows.select(self._named)
            else:
                shown = pc.if_else(errors.is_valid(), pc.not_equal(errors, NULL_VALUE), shown)
            rows = rows.filter(shown)
        key, value = self._key(rows), json_objects([(name, found.column(rows)) for name, found in self.outputs])
        dead = pa.nulls(rows.num_rows, pa.string())
        if not all_good:
            key, value, dead = self._without_bad(rows, key, value)
        columns = [key, value, dead, rows.column("ROWTIME"), rows.column("__partition")]
        return pa.RecordBatch.from_arrays(columns, names=["__key", "__value", "__dead", "__time", "__partition"])

    @cached_property
    def _named(self) -> list[str]:
        """The columns that rows which are not bad are projected from."""
        named = frozenset().union(*(each.names for each in (*self.keys, *(found for _, found in self.outputs))))
        return sorted(named | {"ROWTIME", "__partition"})

    def _without_bad(
        self, rows: pa.RecordBatch, key: pa.BinaryArray, value: pa.BinaryArray
    ) -> tuple[pa.BinaryArray, pa.BinaryArray, pa.StringArray]:
        """Key and value of the rows that have them, and the dead letters of the bad ones. A null value is a result."""
        errors = rows.column("__error")
        good, failed = errors.is_null(), pc.not_equal(errors, NULL_VALUE).fill_null(False)
        letters = dead_letters(errors.filter(failed), rows.column("__raw").filter(failed))
        dead = pc.replace_with_mask(pa.nulls(len(errors), pa.string()), failed, letters)
        return _where(good if self.value_keyed else pc.invert(failed), key), _where(good, value), dead

    def _key(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The keys; none where all parts are null."""
        if self.key_bytes is None:
            return pa.nulls(rows.num_rows, pa.binary())
        parts = [key.column(rows) for key in self.keys]
        known = parts[0].is_valid()
        for part in parts[1:]:
            known = pc.or_(known, part.is_valid())
        return _where(known, self.key_bytes(parts))


def _where(wanted: pa.BooleanArray, column: pa.Array) -> pa.Array:
    """The column with nulls everywhere else."""
    return column if wanted.true_count == len(wanted) else pc.if_else(wanted, column, pa.scalar(None, column.type))


def project_of(query: Query) -> Project | None:
    """How the plan's rows are projected in the workers; None where Spark does it."""
    if query.tables or query.changelog or query.keeps_window or query.timestamp is not None:
        return None
    if query.value_format != "json" or not query.wrapped or query.key_format not in ("none", *KEY_FORMATS):
        return None
    types = expression_types(query.source)
    where = None if query.where is None else condition(query.where, types)
    keys = [group_column(key, types) for key in query.group_by]
    outputs = [(output.name, columnar(output.expression, types)) for output in query.outputs]
    known_keys = tuple(key.value for key in keys if key is not None)
    known = tuple((name, found) for name, found in outputs if found is not None and found.type in _TYPES)
    if (query.where is not None and where is None) or len(known_keys) < len(keys):
        return None
    if not outputs or len(known) < len(outputs):
        return None
    values = {column.name for column in query.source.columns if not column.key}
    keyed = bool(keys) and query.key_format != "none"
    return Project(
        where=where,
        keys=known_keys,
        value_keyed=any(values & key.names for key in known_keys),
        key_bytes=key_bytes_of(query) if keyed else None,
        outputs=known,
    )
