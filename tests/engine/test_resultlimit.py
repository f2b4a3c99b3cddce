"""How large a result may be: as its topic takes it, compressed, and as the client takes it, plain."""

from __future__ import annotations

import random

import confluent_kafka as ck
import pyarrow as pa
import pytest

from pipelines.engine.resultlimit import ANY, ResultLimit, ResultTooLarge, lz4_bytes
from statestore.config import KafkaConfig
from statestore.kafka.admin import Admin
from statestore.kafka.producer import TransactionalProducer
from statestore.staging import EMIT_NOTHING, EMIT_VALUE

KIB = 1024
NOISE = random.Random(1).randbytes(8 * KIB)


def columns(*values: bytes | None) -> tuple[pa.Array, pa.Array]:
    return pa.array([b"k" if at else None for at in range(len(values))], pa.binary()), pa.array(values, pa.binary())


def test_a_topics_limit_is_of_the_compressed_result() -> None:
    limit = ResultLimit("t", compressed=4 * KIB)
    limit.require(*columns(b"a" * 64 * KIB, None, NOISE[: 3 * KIB], NOISE[: 3 * KIB]))
    with pytest.raises(ResultTooLarge, match=r"topic=`t` bytes=`8193` .* most=`4096`; hint: set a larger max.message"):
        limit.require(*columns(b"a", NOISE))


def test_a_clients_limit_is_of_the_plain_result() -> None:
    limit = ResultLimit("t", plain=4 * KIB)
    limit.require(*columns(NOISE[: 3 * KIB], NOISE[: 3 * KIB]))
    with pytest.raises(ResultTooLarge):
        limit.require(*columns(b"a" * 5 * KIB))


def test_what_is_not_emitted_is_no_result() -> None:
    limit = ResultLimit("t", compressed=4 * KIB)
    limit.require(*columns(NOISE), pa.array([EMIT_NOTHING], pa.int8()))
    with pytest.raises(ResultTooLarge):
        limit.require(*columns(NOISE), pa.array([EMIT_VALUE], pa.int8()))


def test_without_a_limit_every_result_is_taken() -> None:
    ANY.require(*columns(NOISE))


def test_a_slice_is_looked_at_alone() -> None:
    keys, values = columns(NOISE, b"a", b"b")
    ResultLimit("t", compressed=KIB).require(keys.slice(1), values.slice(1))


def test_a_limit_is_of_what_the_client_makes_of_a_result(kafka: str, unique: str) -> None:
    # Each block of the client's is compressed for itself: looking back into the one before would save most of this.
    value = random.Random(2).randbytes(50 * KIB) * 6
    size = lz4_bytes(b"k" + value)
    assert len(pa.compress(value, codec="lz4")) < size / 2
    config = KafkaConfig(kafka)
    admin = Admin(config)
    for name, most in (("takes", size + 128), ("refuses", size)):
        admin.create(f"{unique}-{name}", partitions=1, settings={"max.message.bytes": str(most)})
    ResultLimit.of(f"{unique}-takes", admin, config).require(*columns(value))
    with pytest.raises(ResultTooLarge):
        ResultLimit.of(f"{unique}-refuses", admin, config).require(*columns(value))
    assert {"takes": None, "refuses": ck.KafkaError.MSG_SIZE_TOO_LARGE} == {
        name: produced(config, f"{unique}-{name}", value) for name in ("takes", "refuses")
    }


def test_a_topic_that_is_written_uncompressed_takes_plain_results(kafka: str, unique: str) -> None:
    config, value = KafkaConfig(kafka), b"a" * 64 * KIB
    admin = Admin(config)
    settings = {"max.message.bytes": str(16 * KIB), "compression.type": "uncompressed"}
    admin.create(unique, partitions=1, settings=settings)
    with pytest.raises(ResultTooLarge):
        ResultLimit.of(unique, admin, config).require(*columns(value))
    assert produced(config, unique, value) == ck.KafkaError.MSG_SIZE_TOO_LARGE


def produced(config: KafkaConfig, topic: str, value: bytes) -> int | None:
    """What the broker says of one record of our client's; None where it takes it."""
    producer = TransactionalProducer(config, f"{topic}-p", transactions=False)
    told: list[ck.KafkaError | None] = []
    producer._producer.produce(topic, value, b"k", on_delivery=lambda error, _: told.append(error))
    assert producer._producer.flush(60) == 0
    producer.close()
    return None if told[0] is None else told[0].code()
