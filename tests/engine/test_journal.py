"""The driver's entries in the batches topic, where the outcome of one is unknown."""

from __future__ import annotations

import time

import pytest

from pipelines.deploy import deployed_queries
from pipelines.engine.journal import Journal
from pipelines.metastore.embedded import deploy
from pipelines.registry import Registry
from pipelines.settings import Settings
from statestore.batches import Planned, Range
from statestore.kafka.producer import ProducerFatal, TransactionalProducer
from tests.support.feed import SQL, create_topic


def test_an_entry_whose_producer_is_lost_does_not_wait_for_its_own_transaction(
    settings: Settings, kafka: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(kafka, unique)
    registry = Registry(settings.metastore)
    deploy(SQL.format(topic=unique), unique, settings, registry)
    (deployed,) = deployed_queries(registry.pipeline(unique))
    registry.close()
    journal = Journal(deployed, settings.kafka_config(), attempts=3)
    journal.own()
    planned = Planned(0, journal.hash, (Range(unique, "id", 0, 0, 0),))
    journal.plan(planned)
    sends = TransactionalProducer.send_offsets
    lost: list[bool] = []

    def once(producer: TransactionalProducer, *about: object, **more: object) -> None:
        if not lost:
            lost.append(True)
            # What the transaction has so far is with the broker.
            producer.flush()
            raise ProducerFatal("no answer")
        sends(producer, *about, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(TransactionalProducer, "send_offsets", once)
    started = time.monotonic()
    journal.finish(planned)
    assert lost
    # The broker would end it after a minute.
    assert time.monotonic() - started < 20
    assert 0 == journal._past().done
    journal.close()
