"""How large a result may be: as its topic takes it, compressed, and as the client takes it, plain."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pipelines.engine.resultlimit import ANY, ResultLimit, ResultTooLarge, lz4_bytes
from statestore.config import KafkaConfig
from statestore.kafka.admin import Admin
from statestore.kafka.producer import ProducerFatal, TransactionalProducer
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
    assert {"takes": True, "refuses": False} == {
        name: is_taken(config, f"{unique}-{name}", value) for name in ("takes", "refuses")
    }


def test_a_topic_that_is_written_uncompressed_takes_plain_results(kafka: str, unique: str) -> None:
    config, value = KafkaConfig(kafka), b"a" * 64 * KIB
    admin = Admin(config)
    settings = {"max.message.bytes": str(16 * KIB), "compression.type": "uncompressed"}
    admin.create(unique, partitions=1, settings=settings)
    with pytest.raises(ResultTooLarge):
        ResultLimit.of(unique, admin, config).require(*columns(value))
    assert not is_taken(config, unique, value)


def is_taken(config: KafkaConfig, topic: str, value: bytes) -> bool:
    """Whether the broker takes one record of our client's; False where it is too large."""
    producer = TransactionalProducer(config, f"{topic}-p", transactions=False)
    producer.produce(topic, key=b"k", value=value)
    try:
        producer.flush()
    except ProducerFatal as error:
        assert "Message size too large" in str(error)
        return False
    finally:
        producer.close()
    return True
