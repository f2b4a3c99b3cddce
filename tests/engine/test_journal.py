"""The driver's entries in the batches topic, where the outcome of one is unknown."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pipelines.deploy import deployed_queries
from pipelines.engine.journal import Journal
from pipelines.metastore.embedded import deploy
from pipelines.registry import Registry
from pipelines.settings import Settings
from statestore.batches import Planned, Range
from statestore.errors import Unavailable
from statestore.kafka.producer import ProducerFatal, TransactionalProducer
from tests.support.feed import SQL, create_topic


@pytest.fixture
def journal(settings: Settings, kafka: str, unique: str) -> Iterator[Journal]:
    create_topic(kafka, unique)
    registry = Registry(settings.metastore)
    deploy(SQL.format(topic=unique), unique, settings, registry)
    (deployed,) = deployed_queries(registry.pipeline(unique))
    registry.close()
    journal = Journal(deployed, settings.kafka_config(), attempts=3)
    journal.own()
    yield journal
    journal.close()


def test_an_entry_whose_producer_is_lost_does_not_wait_for_its_own_transaction(
    journal: Journal, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("failing", ["require_newest_at_once", "TransactionalProducer"])
def test_an_entry_can_be_written_after_its_lost_producer_could_not_be_replaced(
    journal: Journal, unique: str, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    planned = Planned(0, journal.hash, (Range(unique, "id", 0, 0, 0),))

    def unavailable(*_: object, **__: object) -> None:
        raise Unavailable("no answer")

    def lost(*_: object, **__: object) -> None:
        raise ProducerFatal("no answer")

    with monkeypatch.context() as away:
        away.setattr(TransactionalProducer, "flush", lost)
        away.setattr(f"pipelines.engine.journal.{failing}", unavailable)
        with pytest.raises(Unavailable, match="no answer"):
            journal.plan(planned)
    journal.plan(planned)
    journal.finish(planned)
    assert 0 == journal._past().done
