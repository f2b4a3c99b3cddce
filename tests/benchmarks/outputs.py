"""Reading what a system has put out, as `read_committed`, and comparing it with what is right.

A table's result is by key: the newest record of a key counts. A stream's is all of its rows, in any order, as an Arrow
table, since there are millions. Values are compared as a whole, so a missing, extra or wrong column is a difference as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import confluent_kafka as ck
import orjson
import pyarrow as pa
import pyarrow.json as pj

from tests.support.feed import to_the_ends
from tests.support.present import present

Row = dict[str, Any]
Rows = dict[str, Row]
Expected: TypeAlias = "Rows | pa.Table"
SHOWN = 5


class WrongResult(AssertionError):
    """A system's outputs differ from the model: its figures do not count."""


def messages(bootstrap: str, topic: str) -> Iterator[ck.Message]:
    """Every committed record of a topic up to its end."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "benchmark-reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    consumer = ck.Consumer(settings)
    try:
        partitions = list(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
        consumer.assign([ck.TopicPartition(topic, number, ck.OFFSET_BEGINNING) for number in partitions])
        for message in to_the_ends(consumer, len(partitions)):
            if message.error() is not None:
                raise ck.KafkaException(message.error())
            yield message
    finally:
        consumer.close()


def table(bootstrap: str, topic: str, key_text: Callable[[bytes], str]) -> Rows:
    """The newest row of every key."""
    newest = {present(message.key()): message.value() for message in messages(bootstrap, topic)}
    return {key_text(key): orjson.loads(present(value)) for key, value in newest.items()}


def stream(bootstrap: str, topic: str) -> pa.Table:
    """Every row; a column that a row has not is null there."""
    values = [present(message.value()) for message in messages(bootstrap, topic)]
    text = pa.py_buffer(b"\n".join(values))
    table = pj.read_json(pa.BufferReader(text)) if values else pa.table({})
    if len(table) != len(values):
        raise WrongResult(f"{topic}: {len(values)} records have {len(table)} rows")
    return table


def require_equal(where: str, expected: Expected, found: Expected) -> None:
    """Raises `WrongResult` that shows the first differences."""
    if isinstance(expected, pa.Table):
        assert isinstance(found, pa.Table)
        _require_same_rows(where, expected, found)
        return
    assert isinstance(found, dict)
    wrong = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
    if wrong:
        shown = [f"{key}: {found.get(key)} instead of {expected.get(key)}" for key in sorted(wrong)[:SHOWN]]
        raise WrongResult(f"{where}: {len(wrong)} of {len(expected)} keys are wrong; {'; '.join(shown)}")


def _require_same_rows(where: str, expected: pa.Table, found: pa.Table) -> None:
    names = sorted(expected.column_names)
    if names != sorted(found.column_names):
        raise WrongResult(f"{where}: columns {sorted(found.column_names)} instead of {names}")
    wanted, got = (table.select(names).sort_by([(name, "ascending") for name in names]) for table in (expected, found))
    # Types are compared with the values: a number that comes as text is wrong.
    if not wanted.equals(got):
        pairs = zip(_rows(wanted), _rows(got), strict=False)
        different = list(islice((pair for pair in pairs if pair[0] != pair[1]), SHOWN))
        raise WrongResult(f"{where}: {len(got)} records instead of {len(wanted)}; {different}; {got.schema}")


def _rows(table: pa.Table) -> Iterator[Row]:
    for batch in table.to_batches():
        yield from batch.to_pylist()
