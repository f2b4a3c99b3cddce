"""Every key of a table, as its topic and its store give it, against what is expected.

The topic is read with `read_committed`; the newest record of a key is its row, a null value deletes it. Numbers must
be equal, doubles included.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ops.demo.expected import ONLY_IN_TOPIC, Rows
from pipelines.deploy import DeployedQuery
from pipelines.query import StoreReader, decode_key
from statestore.kafka.reader import Reader
from statestore.store import Isolation

_SHOWN = 5


def from_topic(deployed: DeployedQuery, reader: Reader) -> Rows:
    """The table as a consumer of its topic has it in the end."""
    query = deployed.query
    newest: dict[bytes, bytes | None] = {}
    for partition in range(query.output_partitions):
        start, _ = reader.begin_and_end(query.output_topic, partition)
        for chunk in reader.read(query.output_topic, partition, start=start):
            newest.update((record.key or b"", record.value) for record in chunk)
    return {
        tuple(decode_key(query, key).values()): json.loads(value) for key, value in newest.items() if value is not None
    }


def from_store(reader: StoreReader) -> Rows:
    """The table's store, all tasks of it. A key that comes twice is an error of the store's: it is shown as a row."""
    rows: Rows = {}
    for row in reader.scan(None, None, Isolation.READ_COMMITTED):
        key = tuple(row.key.values())
        rows[(*key, "twice") if key in rows else key] = row.value
    return rows


def differences(where: str, found: Rows, expected: Rows, *, stored: bool) -> Iterator[str]:
    """One line per key that is missing, should not be there, or has another value."""
    for key, values in expected.items():
        wanted = {name: value for name, value in values.items() if not (stored and name in ONLY_IN_TOPIC)}
        if key not in found:
            yield f"{where}: {_name(key)} is missing"
            continue
        got = {name: found[key].get(name, "nothing") for name in wanted}
        wrong = [f"{n} is {got[n]}, expected {wanted[n]}" for n in wanted if not _same(got[n], wanted[n])]
        if wrong:
            yield f"{where}: {_name(key)}: {', '.join(wrong)}"
    for key in found:
        if key not in expected:
            yield f"{where}: {_name(key)} should not be there"


def _same(one: object, other: object) -> bool:
    """Equal, and of one type: 3 is not 3.0."""
    return one == other and type(one) is type(other)


def _name(key: tuple[Any, ...]) -> str:
    return " ".join(map(str, key))


def shortened(lines: list[str]) -> list[str]:
    """The first few, and how many more there are."""
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], f"and {more:,} more"] if more > 0 else lines
