"""How large a result may be: its topic takes records of so many bytes, and the client does where its settings say so.

A result that is larger would fail the commit, which some tasks of the batch may have made by then. So rows are looked
at when they are staged, and what is too large counts against the record that it is of (`isolate.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.resolve import MAX_BYTES
from statestore.config import KafkaConfig
from statestore.errors import InvalidInput
from statestore.kafka.admin import Admin
from statestore.kafka.producer import message_bytes
from statestore.staging import EMIT_VALUE

# What Kafka's format writes around the key and value of a record that is alone in its batch: 61 bytes of a batch, up to 20 of
# a record, and some for blocks that compress a little worse behind these than alone.
_ROOM = 128
# The client compresses blocks of so many bytes, each for itself (librdkafka's rdkafka_lz4.c), where Arrow's LZ4 looks back into
# the block before. A frame has so many bytes more than its blocks, and Arrow makes one of each block here.
_BLOCK_BYTES, _FRAME_BYTES = 64 * 1024, 11


class ResultTooLarge(InvalidInput):
    """A result is larger than its topic takes."""


@dataclass(frozen=True)
class ResultLimit:
    """Of one topic: `compressed` bytes are what it takes, `plain` ones what the client takes."""

    topic: str = ""
    compressed: int = 1 << 62
    plain: int = 1 << 62

    @classmethod
    def of(cls, topic: str, admin: Admin, kafka: KafkaConfig) -> ResultLimit:
        """As it is now. Some topics are written uncompressed by the broker, which then looks at the size once more."""
        configs = admin.configs(topic)
        most, plain = int(configs[MAX_BYTES]), message_bytes(kafka)
        return cls(topic, most, min(most, plain) if configs["compression.type"] == "uncompressed" else plain)

    def require(self, keys: pa.Array, values: pa.Array, emits: pa.Array | None = None) -> None:
        """Raise `ResultTooLarge` if a result is larger; without `emits` every row is one."""
        most = min(self.compressed, self.plain) - _ROOM
        if keys.nbytes + values.nbytes <= most:
            return
        sizes = pc.add(*(pc.fill_null(pc.binary_length(column), 0) for column in (keys, values)))
        large = pc.greater(sizes, most)
        if emits is not None:
            large = pc.and_(large, pc.equal(emits, EMIT_VALUE))
        for row in pc.indices_nonzero(large).to_pylist():
            self._require(keys[row].as_buffer(), values[row].as_buffer())

    def _require(self, key: pa.Buffer | None, value: pa.Buffer | None) -> None:
        data = b"".join(memoryview(part) for part in (key, value) if part is not None)
        compressed = min(len(data), lz4_bytes(data))
        if compressed + _ROOM > self.compressed or len(data) + _ROOM > self.plain:
            raise ResultTooLarge(
                "result is larger than its topic takes",
                topic=self.topic,
                bytes=len(data),
                compressed=compressed,
                most=min(self.compressed, self.plain),
                hint=f"set a larger {MAX_BYTES} of the topic",
            )


def lz4_bytes(data: bytes) -> int:
    """How many bytes the client makes of these."""
    blocks = [data[start : start + _BLOCK_BYTES] for start in range(0, len(data), _BLOCK_BYTES)]
    return sum(len(pa.compress(block, codec="lz4")) for block in blocks) - _FRAME_BYTES * (len(blocks) - 1)


ANY = ResultLimit()
