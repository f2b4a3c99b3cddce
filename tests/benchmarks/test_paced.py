"""The process that produces at a steady rate: what it says it has sent is what the broker has."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pytest

from statestore.murmur2 import partitions_of
from tests.benchmarks import outputs, topics
from tests.benchmarks.paced import Paced, Supply
from tests.support.present import present
from tests.support.waiting import await_

RATE = 4_000.0
KEYS = 100


def test_the_topic_has_what_was_sent_at_its_time_and_in_its_order(kafka: str, unique: str, tmp_path: Path) -> None:
    topics.create(kafka, unique)
    paced = Paced(kafka, unique, rate=RATE, seconds=1.0, keys=KEYS, file=tmp_path / "sent.npy")
    await_("the end of its time", lambda: not paced.running)
    sent = paced.sent()
    assert pytest.approx(RATE, rel=0.05) == len(sent)
    assert expected(sent) == found(kafka, unique)


def test_one_that_is_ended_early_says_what_it_has_sent(kafka: str, unique: str, tmp_path: Path) -> None:
    topics.create(kafka, unique)
    paced = Paced(kafka, unique, rate=RATE, seconds=600, keys=KEYS, file=tmp_path / "sent.npy")
    await_("its first record", lambda: topics.end_offsets(kafka, unique))
    sent = paced.sent()
    assert 0 < len(sent) < 600 * RATE
    assert expected(sent) == found(kafka, unique)


@pytest.mark.parametrize("rate", [100.0, 20_000.0, 1_000_000.0])
def test_a_supply_has_batches_of_one_size_for_every_partition(rate: float) -> None:
    supply = Supply.of(rate, 10_000)
    assert topics.PARTITIONS == len(supply.batches)
    assert {supply.size} == {len(batch.auctions) for each in supply.batches for batch in each}
    assert pytest.approx(rate) == topics.PARTITIONS * supply.size / supply.period_s


def expected(sent: pd.DataFrame) -> dict[int, list[tuple[int, int]]]:
    """(auction, time) of each partition's records, in their order."""
    keys = pa.array(sent["auction"].to_numpy()).cast(pa.string()).cast(pa.binary())
    by_partition = sent.groupby(np.asarray(partitions_of(keys, topics.PARTITIONS)))
    return {number: list(zip(rows["auction"], rows["ms"], strict=True)) for number, rows in by_partition}


def found(kafka: str, topic: str) -> dict[int, list[tuple[int, int]]]:
    """The same of the topic; key and value name the same auction."""
    records = defaultdict(list)
    for message in outputs.messages(kafka, topic):
        auction = int(present(message.key()))
        assert auction == orjson.loads(present(message.value()))["auction"]
        records[present(message.partition())].append((auction, message.timestamp()[1]))
    return dict(records)
