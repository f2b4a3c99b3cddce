"""How large a result may be: as its topic takes it, compressed, and as the client takes it, plain."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pipelines.engine.resultlimit import ANY, ResultLimit, ResultTooLarge
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
