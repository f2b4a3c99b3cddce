"""librdkafka's messages as columns, without a Python object for any of them.

The binding makes an object of each message, and each field of it is a call: a microsecond a record, several times what
the client itself takes. Here the library that the binding has loaded is called by its public C interface, and what its
message structs point to is read as a whole:

    consume_batch ──► n pointers ──► n rows of the struct's words ──► bytes copied run by run ──► Arrow columns

Messages that came in one request lie one behind the other in one piece of memory, so a run is mostly hundreds of them.
Copied is the whole run, what lies between the fields included, and the columns are taken from the copy. The messages
are given back before `consume` returns.

Which words of a struct are what is the library's ABI, but for the record's time: that lies in the private part behind
it. It is read there as long as it is what the library's own function says of a block's first and last message.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, ClassVar

import confluent_kafka.cimpl as binding
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.columns import Headers, spans
from statestore.errors import InvalidConfig, InvariantBroken

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

# Symbols are looked for in what the binding was linked with, too. The first lets other threads run meanwhile, the second
# does not, which costs more than the short functions themselves.
_LIBRARY = ctypes.CDLL(binding.__file__)
_SHORT = ctypes.PyDLL(binding.__file__)
_POINTER, _SIZE, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
_CONSUMER = 1
_ERROR_BYTES = 512
# `rd_kafka_message_t` in words of eight bytes, then what is behind it.
_ERR, _TOPIC, _PARTITION, _PAYLOAD, _LEN, _KEY, _KEY_LEN, _OFFSET = range(8)
_TIME_KIND, _TIME = 11, 12
_WORDS = _TIME + 1
_NO_TIME = -1
# Between two values of a run there is at most the head of a batch and of a record, with its headers.
_GAP_MAX = 4096


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    function = library[f"rd_kafka_{name}"]
    function.restype, function.argtypes = result, arguments
    return function


_conf_new = _function(_SHORT, "conf_new", _POINTER)
_conf_set = _function(_SHORT, "conf_set", ctypes.c_int, _POINTER, _TEXT, _TEXT, _TEXT, _SIZE)
_conf_destroy = _function(_SHORT, "conf_destroy", None, _POINTER)
_new = _function(_LIBRARY, "new", _POINTER, ctypes.c_int, _POINTER, _TEXT, _SIZE)
_poll_set_consumer = _function(_LIBRARY, "poll_set_consumer", ctypes.c_int, _POINTER)
_queue_get_consumer = _function(_SHORT, "queue_get_consumer", _POINTER, _POINTER)
_queue_destroy = _function(_SHORT, "queue_destroy", None, _POINTER)
_consumer_close = _function(_LIBRARY, "consumer_close", ctypes.c_int, _POINTER)
_destroy = _function(_LIBRARY, "destroy", None, _POINTER)
_partitions_new = _function(_SHORT, "topic_partition_list_new", _POINTER, ctypes.c_int)
_partitions_add = _function(_SHORT, "topic_partition_list_add", _POINTER, _POINTER, _TEXT, ctypes.c_int32)
_partitions_set_offset = _function(
    _SHORT, "topic_partition_list_set_offset", ctypes.c_int, _POINTER, _TEXT, ctypes.c_int32, ctypes.c_int64
)
_partitions_destroy = _function(_SHORT, "topic_partition_list_destroy", None, _POINTER)
_assign = _function(_LIBRARY, "assign", ctypes.c_int, _POINTER, _POINTER)
_consume_batch = _function(_LIBRARY, "consume_batch_queue", ctypes.c_ssize_t, _POINTER, ctypes.c_int, _POINTER, _SIZE)
_err2str = _function(_SHORT, "err2str", _TEXT, ctypes.c_int)
_topic_name = _function(_SHORT, "topic_name", _TEXT, _POINTER)
_message_errstr = _function(_SHORT, "message_errstr", _TEXT, _POINTER)
_message_headers = _function(_SHORT, "message_headers", ctypes.c_int, _POINTER, _POINTER)
_header_get_all = _function(
    _SHORT,
    "header_get_all",
    ctypes.c_int,
    _POINTER,
    _SIZE,
    ctypes.POINTER(_TEXT),
    ctypes.POINTER(_POINTER),
    ctypes.POINTER(_SIZE),
)
_message_timestamp = _function(_SHORT, "message_timestamp", ctypes.c_int64, _POINTER, _POINTER)
_message_destroy = _function(_SHORT, "message_destroy", None, _POINTER)
_move = ctypes.PyDLL(None)["memmove"]
_move.restype, _move.argtypes = None, (_POINTER, _POINTER, _SIZE)


class _Everything:
    """This process's memory: row n is the struct at address 8 (n + 1), since numpy takes 0 for no address.

    What is not mapped must not be looked at.
    """

    __array_interface__: ClassVar[dict[str, object]] = {
        "shape": (2**44, _WORDS),
        "strides": (8, 8),
        "typestr": "<u8",
        "data": (8, True),
        "version": 3,
    }


_MEMORY: Words = np.asarray(_Everything())


@dataclass(frozen=True)
class Event:
    """What a consumer says instead of a record: an error, or a partition's end. `offset` is -1001 where it has none."""

    code: int
    text: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class Records:
    """A run of records of one topic's partition, as columns, their bytes in one buffer.

    offsets, times_ms: one a record; a record without a time has -1.
    headers: of those records that have any, in their order; none if they were not asked for.
    """

    topic: str
    partition: int
    offsets: Integers
    times_ms: Integers
    headers: tuple[Headers, ...]
    _keys: _Fields
    _values: _Fields

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        return int(self._keys.sizes.sum() + self._values.sizes.sum())

    @cached_property
    def keys(self) -> pa.BinaryArray:
        """The keys, null where a record has none."""
        return self._keys.column()

    @cached_property
    def values(self) -> pa.BinaryArray:
        """The values, null for tombstones."""
        return self._values.column()

    def until(self, end: int) -> Records:
        """Those of offsets below `end`."""
        count = int(np.searchsorted(self.offsets, end))
        if count == len(self):
            return self
        return Records(
            self.topic,
            self.partition,
            self.offsets[:count],
            self.times_ms[:count],
            self.headers,
            self._keys.first(count),
            self._values.first(count),
        )


@dataclass(frozen=True)
class _Fields:
    """One field of each record: `sizes` bytes at `places` in the buffer, or nothing."""

    buffer: pa.Buffer
    places: Integers
    sizes: Integers
    nulls: npt.NDArray[np.bool_]

    def first(self, count: int) -> _Fields:
        return _Fields(self.buffer, self.places[:count], self.sizes[:count], self.nulls[:count])

    def column(self) -> pa.BinaryArray:
        nulls = self.nulls if self.nulls.any() else None
        return spans(self.buffer, self.places, self.places + self.sizes, pa.binary(), nulls)


class Consumer:
    """A consumer of one partition at a time, for one thread at a time, that commits nothing. Headers are read if asked for."""

    def __init__(self, settings: Mapping[str, object], *, headers: bool = False) -> None:
        self._headers = headers
        self._handle: int | None = _consumer(settings)
        _poll_set_consumer(self._handle)
        self._queue = _queue_get_consumer(self._handle)
        self._pointers = np.zeros(0, np.uint64)

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Read this partition from here on; what was fetched before is forgotten."""
        partitions = _partitions_new(1)
        _partitions_add(partitions, topic.encode(), partition)
        _partitions_set_offset(partitions, topic.encode(), partition, offset)
        error = _assign(self._handle, partitions)
        _partitions_destroy(partitions)
        if error:
            raise InvariantBroken("client refuses a partition", error=_err2str(error).decode(), topic=topic)

    def unassign(self) -> None:
        """Read nothing."""
        _assign(self._handle, None)

    def consume(self, most: int, timeout_s: float) -> list[Records | Event]:
        """What comes within the time, in its order, up to so many records and events; it waits for all of them."""
        if len(self._pointers) < most:
            self._pointers = np.zeros(most, np.uint64)
        count = _consume_batch(self._queue, int(timeout_s * 1000), self._pointers.ctypes.data, most)
        if count <= 0:
            return []
        pointers = self._pointers[:count]
        messages = pointers.tolist()
        try:
            return _copied(pointers, messages, headers=self._headers)
        finally:
            deque(map(_message_destroy, messages), maxlen=0)

    def close(self) -> None:
        """Release connections and memory. Does nothing the second time."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _queue_destroy(self._queue)
            _consumer_close(handle)
            _destroy(handle)


def _consumer(settings: Mapping[str, object]) -> int:
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    conf = _conf_new()
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if _conf_set(conf, name.encode(), text.encode(), error, _ERROR_BYTES):
            _conf_destroy(conf)
            raise InvalidConfig("kafka client refuses a setting", setting=name, error=error.value.decode())
    handle: int | None = _new(_CONSUMER, conf, error, _ERROR_BYTES)
    if handle is None:
        _conf_destroy(conf)
        raise InvalidConfig("kafka client cannot be made", error=error.value.decode())
    return handle


def _copied(pointers: Words, messages: Sequence[int], *, headers: bool) -> list[Records | Event]:
    """Runs of records of one partition, and the events between them."""
    rows = _MEMORY[pointers // 8 - 1]
    places = np.stack([rows[:, _ERR] & 0xFFFFFFFF, rows[:, _TOPIC], rows[:, _PARTITION] & 0xFFFFFFFF])
    events = places[0] != 0
    starts = np.flatnonzero(np.append(True, (places[:, 1:] != places[:, :-1]).any(axis=0) | events[1:]))
    found: list[Records | Event] = []
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
        found.append(
            _event(messages[start], rows[start])
            if events[start]
            else _records(messages[start:end], rows[start:end], headers=headers)
        )
    return found


def _event(message: int, row: Words) -> Event:
    code, offset = (int(row[word].astype(np.int64)) for word in (_ERR, _OFFSET))
    text = _message_errstr(message)
    return Event(
        ctypes.c_int32(code & 0xFFFFFFFF).value,
        text.decode(errors="replace") if text else "",
        _name(row[_TOPIC]),
        _partition(row),
        offset,
    )


def _name(topic: np.uint64) -> str:
    return _topic_name(int(topic)).decode() if topic else ""


def _partition(row: Words) -> int:
    return ctypes.c_int32(int(row[_PARTITION]) & 0xFFFFFFFF).value


def _records(messages: Sequence[int], rows: Words, *, headers: bool) -> Records:
    key, key_size, value, value_size = (rows[:, word] for word in (_KEY, _KEY_LEN, _PAYLOAD, _LEN))
    # What is empty may be anywhere.
    starts = np.where(key_size > 0, key, value)
    sizes = np.where(value_size > 0, value + value_size, key + key_size) - starts
    sizes = np.where(key_size + value_size > 0, sizes, 0)
    if (sizes > key_size + value_size + _GAP_MAX).any():
        raise InvariantBroken("client keeps a record's key apart from its value", hint="use the pinned confluent-kafka")
    buffer, places = _copy(starts, sizes)
    shift = np.where(sizes > 0, starts, 0) - places
    return Records(
        _name(rows[0, _TOPIC]),
        _partition(rows[0]),
        rows[:, _OFFSET].astype(np.int64),
        _times(messages, rows),
        _headers(messages) if headers else (),
        _Fields(buffer, *_placed(key - shift, key_size, places), key == 0),
        _Fields(buffer, *_placed(value - shift, value_size, places), value == 0),
    )


def _placed(places: Words, sizes: Words, run: Words) -> tuple[Integers, Integers]:
    return np.where(sizes > 0, places, run).astype(np.int64), sizes.astype(np.int64)


def _copy(starts: Words, sizes: Words) -> tuple[pa.Buffer, Words]:
    """The bytes of all records in one buffer, in their order, and where in it each record's begin."""
    present = np.flatnonzero(sizes)
    places = np.zeros(len(starts), np.uint64)
    if not len(present):
        return pa.py_buffer(b""), places
    begin, end = starts[present], (starts + sizes)[present]
    # Unsigned: one that lies before the one before it is far behind it. Too small for a page to lie in it that is not
    # there, a gap can be read.
    first = np.flatnonzero(np.append(True, begin[1:] - end[:-1] > _GAP_MAX))
    last = np.append(first[1:], len(present)) - 1
    lengths = end[last] - begin[first]
    into = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    if total > np.iinfo(np.int32).max:
        raise InvariantBroken("client gives more at once than a column can hold", bytes=total)
    buffer = pa.allocate_buffer(total)
    deque(map(_move, (into + np.uint64(buffer.address)).tolist(), begin[first].tolist(), lengths.tolist()), maxlen=0)
    places[present] = begin - np.repeat(begin[first] - into, last - first + 1)
    # A record without bytes stands where the one before it does.
    return buffer, np.maximum.accumulate(places)


def _times(messages: Sequence[int], rows: Words) -> Integers:
    times: Integers = np.where(rows[:, _TIME_KIND] >> 32 == 0, _NO_TIME, rows[:, _TIME].astype(np.int64))
    ends = [0, len(messages) - 1]
    if times[ends].tolist() != [_message_timestamp(messages[row], None) for row in ends]:
        return np.fromiter(map(_message_timestamp, messages, repeat(None)), np.int64, len(messages))
    return times


def _headers(messages: Sequence[int]) -> tuple[Headers, ...]:
    """Of the messages that have any."""
    held = ctypes.c_void_p()
    found: list[Headers] = []
    for error in map(_message_headers, messages, repeat(ctypes.byref(held))):
        if not error:
            found.append(_pairs(held))
    return tuple(found)


def _pairs(headers: ctypes.c_void_p) -> Headers:
    name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    found: list[tuple[str, bytes | None]] = []
    while not _header_get_all(headers, len(found), ctypes.byref(name), ctypes.byref(value), ctypes.byref(size)):
        text = (name.value or b"").decode()
        found.append((text, None if value.value is None else ctypes.string_at(value.value, size.value)))
    return tuple(found)
