"""A transactional producer whose commits fail as a test says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import confluent_kafka as ck

from statestore.kafka.producer import TransactionalProducer


@dataclass(frozen=True)
class Fault:
    """One failing commit. `committed`: Kafka has committed all the same, only the answer is an error."""

    code: int
    retriable: bool = False
    abortable: bool = False
    fatal: bool = False
    committed: bool = False


RETRIABLE = Fault(ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS, retriable=True)
ABORTABLE = Fault(ck.KafkaError.INVALID_TXN_STATE, abortable=True)
TIMED_OUT = Fault(ck.KafkaError._TIMED_OUT)
ANSWER_LOST = Fault(ck.KafkaError._TIMED_OUT, committed=True)
FATAL = Fault(ck.KafkaError.UNKNOWN_PRODUCER_ID, fatal=True)


class _Client:
    """The client with commits that fail; everything else is its own."""

    def __init__(self, client: ck.Producer, faults: Iterator[Fault | None]) -> None:
        self._client = client
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def __len__(self) -> int:
        return len(self._client)

    def commit_transaction(self, timeout: float) -> None:
        fault = next(self._faults, None)
        if fault is None or fault.committed:
            self._client.commit_transaction(timeout)
        if fault is not None:
            raise ck.KafkaException(
                ck.KafkaError(
                    fault.code,
                    "made by the test",
                    fatal=fault.fatal,
                    retriable=fault.retriable,
                    txn_requires_abort=fault.abortable,
                )
            )


class FaultyProducers:
    """Makes producers that take their faults from one sequence, in which None lets a commit through."""

    def __init__(self, faults: Iterator[Fault | None]) -> None:
        self._faults = faults

    def __call__(self, *args: Any, **options: Any) -> TransactionalProducer:
        producer = TransactionalProducer(*args, **options)
        producer._client = _Client(producer._producer, self._faults)  # type: ignore[assignment]
        return producer
