"""The demo's judge: what it expects, and that it sees every kind of difference."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from ops.demo import compare, expected, flights
from statestore.config import KafkaConfig
from statestore.errors import Unavailable
from statestore.kafka.admin import Admin
from statestore.kafka.producer import TransactionalProducer
from statestore.kafka.reader import Reader
from tests.support.waiting import await_

NOTHING = float("nan")


def some_flights() -> pd.DataFrame:
    common: dict[str, object] = {
        "year": 2013,
        "month": 1,
        "day": 2,
        "distance": 100,
        "time_hour": "2013-01-02T20:00:00Z",
    }
    rows: list[dict[str, object]] = [
        {"carrier": "UA", "tailnum": "N1", "origin": "EWR", "dest": "IAH", "dep_delay": 16.0, "arr_delay": 1.0},
        {"carrier": "UA", "tailnum": None, "origin": "EWR", "dest": "IAH", "dep_delay": NOTHING, "arr_delay": NOTHING},
        {"carrier": "UA", "tailnum": "N2", "origin": "EWR", "dest": "IAH", "dep_delay": -3.0, "arr_delay": 2.0},
        {"carrier": "9E", "tailnum": "N3", "origin": "JFK", "dest": "LAX", "dep_delay": NOTHING, "arr_delay": NOTHING},
    ]
    return pd.DataFrame([{**common, **row} for row in rows])


def test_expected_leaves_cancelled_flights_out_of_delays() -> None:
    rows = expected.carrier_delays(some_flights())
    assert {
        "FLIGHTS": 3,
        "DEPARTED": 2,
        "MEAN_DELAY": 6.5,
        "WORST_DELAY": 16,
        "BEST_DELAY": -3,
        "LATE": 1,
        "LATE_SHARE": 0.5,
        "TOTAL_DISTANCE": 300,
    } == rows[("UA",)]
    assert (0.0, None, 0) == tuple(rows[("9E",)][name] for name in ("MEAN_DELAY", "LATE_SHARE", "LATE"))


def test_expected_routes_are_by_day() -> None:
    assert {
        ("EWR", "IAH", 2013, 1, 2): {"FLIGHTS": 3, "MEAN_ARR_DELAY": 1.5, "WORST_ARR_DELAY": 2},
        ("JFK", "LAX", 2013, 1, 2): {"FLIGHTS": 1, "MEAN_ARR_DELAY": 0.0, "WORST_ARR_DELAY": None},
    } == expected.route_days(some_flights())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: rows.pop(("UA",)), "t: UA is missing"),
        (lambda rows: rows.update({("ZZ",): {}}), "t: ZZ should not be there"),
        (lambda rows: rows[("UA",)].update(FLIGHTS=4), "t: UA: FLIGHTS is 4, expected 3"),
        (lambda rows: rows[("UA",)].update(FLIGHTS=3.0), "t: UA: FLIGHTS is 3.0, expected 3"),
        (lambda rows: rows[("UA",)].update(MEAN_DELAY=6.500000000000001), "t: UA: MEAN_DELAY is"),
        (lambda rows: rows[("9E",)].pop("LATE"), "t: 9E: LATE is nothing, expected 0"),
    ],
    ids=["missing", "too many", "wrong", "wrong type", "one bit off", "no column"],
)
def test_every_difference_is_told(change: Callable[[dict[tuple[Any, ...], dict[str, Any]]], object], told: str) -> None:
    found = expected.carrier_delays(some_flights())
    wanted = expected.carrier_delays(some_flights())
    assert [] == list(compare.differences("t", found, wanted, stored=False))
    change(found)
    differences = list(compare.differences("t", found, wanted, stored=False))
    assert 1 == len(differences)
    assert differences[0].startswith(told)


def test_records_hold_whole_numbers_and_nulls() -> None:
    (key, value, time_ms), (no_key, cancelled, _), *_ = flights.records(some_flights())
    assert (b"N1", None, 1_357_156_800_000) == (key, no_key, time_ms)
    assert (16, None) == (json.loads(value or b"")["dep_delay"], json.loads(cancelled or b"")["dep_delay"])
    assert b'"dep_delay":16,' in (value or b"")


def test_a_replay_that_fails_leaves_no_transaction_open(
    kafka: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = KafkaConfig(kafka)
    Admin(config).create(unique, partitions=1, settings=flights.TOPIC_SETTINGS)
    monkeypatch.setattr(flights, "TOPIC", unique)
    reader = Reader(config)

    def is_open() -> bool:
        return reader.stable_end(unique, 0) < reader.begin_and_end(unique, 0)[1]

    def failed(producer: TransactionalProducer) -> None:
        producer._producer.flush(10)
        assert is_open()
        raise Unavailable("made by the test")

    monkeypatch.setattr(TransactionalProducer, "flush", failed)
    replay = flights.Replay(config, flights.records(some_flights()), seconds=1)
    replay.run()
    assert isinstance(replay.error, Unavailable)
    await_("no transaction is open", lambda: not is_open(), timeout_s=2)
