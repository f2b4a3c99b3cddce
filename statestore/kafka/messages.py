"""The client's messages read where they lie, and columns queued as messages: the loops of `librdkafka.py`, compiled.

    n pointers ──► runs of one partition ──► bytes of keys, of values, ends of each, offsets, times
                                        └──► given back

    bytes of keys, of values, ends of each, times ──► a call of the client for each record

Which words of a message's struct are what, and of an argument's, is the client's public ABI; a record's time its own
function says.
"""

from __future__ import annotations

from typing import Any, ClassVar

import confluent_kafka.cimpl as binding
import numpy as np
import numpy.typing as npt
from numba import types

from statestore.compiled import compiled, external, fixed, memcpy
from statestore.fields import Field

Integers = npt.NDArray[np.int64]

# `rd_kafka_message_t` in words of eight bytes; an error's and a partition's number are the lower halves of theirs.
ERR, TOPIC, PARTITION, PAYLOAD, LEN, KEY, KEY_LEN, OFFSET = range(8)
_LOWER = 0xFFFFFFFF
_WORD = 8
# `rd_kafka_vu_t`, an argument of `rd_kafka_produceva`, in words: what it is, then what it holds.
_ARGUMENT = 9
_TOPIC_HANDLE, _TO_PARTITION, _VALUE, _KEY, _FLAGS, _TIMESTAMP = 2, 3, 4, 5, 7, 8
_COPIED = 2


class _Everything:
    """This process's memory as words: word n is at address 8 (n + 1), since numpy takes 0 for no address.

    What is not mapped must not be looked at.
    """

    __array_interface__: ClassVar[dict[str, object]] = {
        "shape": (2**57,),
        "typestr": "<i8",
        "data": (_WORD, True),
        "version": 3,
    }


MEMORY: Integers = np.asarray(_Everything())


def _client(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the library that the binding has loaded."""
    return external(binding.__file__, f"rd_kafka_{name}", result, *arguments)


_message_timestamp = _client("message_timestamp", types.int64, types.intp, types.intp)
_message_destroy = _client("message_destroy", types.void, types.intp)
_produceva = _client("produceva", types.intp, types.intp, types.intp, types.intp)
_error_destroy = _client("error_destroy", types.void, types.intp)


@compiled
def run(memory: Integers, messages: Integers, start: int) -> tuple[int, int, int]:
    """Where the run that begins at `start` ends, and the bytes of its keys and of its values.

    A run is of records of one partition, or a single event.
    """
    first = messages[start] // _WORD - 1
    if memory[first + ERR] & _LOWER:
        return start + 1, 0, 0
    end, keys, values = start, 0, 0
    while end < len(messages):
        at = messages[end] // _WORD - 1
        if (
            memory[at + ERR] & _LOWER
            or memory[at + TOPIC] != memory[first + TOPIC]
            or (memory[at + PARTITION] ^ memory[first + PARTITION]) & _LOWER
        ):
            break
        keys += memory[at + KEY_LEN]
        values += memory[at + LEN]
        end += 1
    return end, keys, values


@compiled
def copy(
    memory: Integers,
    messages: Integers,
    keys: Field,
    values: Field,
    offsets: Integers,
    times_ms: Integers,
) -> None:
    """Copy a run's records: the bytes of keys and values one after the other, the rest into these arrays.

    Ends have one entry more than there are records: the first is 0.
    """
    (key_bytes, key_ends, key_nulls), (value_bytes, value_ends, value_nulls) = keys, values
    key_end = value_end = 0
    key_ends[0] = value_ends[0] = 0
    for row in range(len(messages)):
        at = messages[row] // _WORD - 1
        key_nulls[row] = memory[at + KEY] == 0
        value_nulls[row] = memory[at + PAYLOAD] == 0
        memcpy(key_bytes + key_end, memory[at + KEY], memory[at + KEY_LEN])
        memcpy(value_bytes + value_end, memory[at + PAYLOAD], memory[at + LEN])
        key_end += memory[at + KEY_LEN]
        value_end += memory[at + LEN]
        key_ends[row + 1], value_ends[row + 1] = key_end, value_end
        offsets[row] = memory[at + OFFSET]
        times_ms[row] = _message_timestamp(messages[row], 0)


@compiled
def give_back(messages: Integers) -> None:
    """Give the messages back to the client: what they point to is gone."""
    for message in messages:
        _message_destroy(message)


@compiled
def queue(
    producer: int,
    topic: int,
    partition: int,
    keys: Field,
    values: Field,
    skip: int,
    times_ms: Integers,
) -> int:
    """Queue records at a producer; gives how many it took before it refused one.

    partition: -1 for the one of the record's key. Ends are as in `copy`, but for the first, which may be any.
    skip: so many bytes of each value are left out, its first; none is shorter.
    """
    (key_bytes, key_ends, key_nulls), (value_bytes, value_ends, value_nulls) = keys, values
    arguments = np.zeros((6, _ARGUMENT), np.int64)
    arguments[:, 0] = np.array([_TOPIC_HANDLE, _TO_PARTITION, _FLAGS, _KEY, _VALUE, _TIMESTAMP])
    arguments[0, 1], arguments[1, 1], arguments[2, 1] = topic, partition, _COPIED
    for row in range(len(times_ms)):
        arguments[3, 1] = 0 if key_nulls[row] else key_bytes + key_ends[row]
        arguments[3, 2] = 0 if key_nulls[row] else key_ends[row + 1] - key_ends[row]
        arguments[4, 1] = 0 if value_nulls[row] else value_bytes + value_ends[row] + skip
        arguments[4, 2] = 0 if value_nulls[row] else value_ends[row + 1] - value_ends[row] - skip
        arguments[5, 1] = times_ms[row]
        error = _produceva(producer, arguments.ctypes.data, len(arguments))
        if error:
            _error_destroy(error)
            return row
    return len(times_ms)


def ready() -> None:
    """Have the machine code of all loops, an eighth of a second before anybody waits for it."""
    nobody, none = np.zeros(OFFSET + 1, np.int64), np.zeros(0, np.int64)
    no_ends, no_nulls = np.zeros(1, np.int32), np.zeros(0, np.bool_)
    written, read = (0, no_ends, no_nulls), (0, fixed(no_ends), fixed(no_nulls))
    run(MEMORY, np.array([nobody.ctypes.data]), 0)
    copy(MEMORY, none, written, written, none, none)
    give_back(none)
    queue(0, 0, 0, read, read, 0, fixed(none))
