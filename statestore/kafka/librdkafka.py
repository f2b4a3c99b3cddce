"""librdkafka's messages as columns, and columns as its messages, without a Python object for any of them.

The binding makes an object of each message, and each field of it is a call: a microsecond a record, several times what
the client itself takes. Here the library that the binding has loaded is called by its public C interface, and its
messages are copied into Arrow columns by compiled loops (`messages.py`):

    consume_batch ──► n pointers ──► runs of records of one partition, and events between them ──► given back
    columns ──► a call for each record ──► the queue of a producer of the binding
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import confluent_kafka.cimpl as binding
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.columns import Headers, Timed
from statestore.compiled import fixed
from statestore.errors import InvalidConfig, InvariantBroken
from statestore.fields import Field, column_of, held
from statestore.kafka import messages

Integers = npt.NDArray[np.int64]

# Symbols are looked for in what the binding was linked with, too. The first lets other threads run meanwhile, the second
# does not, which costs more than the short functions themselves.
_LIBRARY = ctypes.CDLL(binding.__file__)
_SHORT = ctypes.PyDLL(binding.__file__)
_POINTER, _SIZE, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
_CONSUMER = 1
_ERROR_BYTES = 512


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
_topic_new = _function(_SHORT, "topic_new", _POINTER, _POINTER, _TEXT, _POINTER)
_topic_destroy = _function(_SHORT, "topic_destroy", None, _POINTER)
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
    """A run of records of one topic's partition, as columns.

    keys, values: null where a record has none.
    offsets, times_ms: one a record; a record without a time has -1.
    headers: of those records that have any, in their order; none if they were not asked for.
    """

    topic: str
    partition: int
    keys: pa.BinaryArray
    values: pa.BinaryArray
    offsets: Integers
    times_ms: Integers
    headers: tuple[Headers, ...]

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def bytes(self) -> int:
        """Of keys and values, bookkeeping included."""
        size: int = self.keys.nbytes + self.values.nbytes
        return size

    def until(self, end: int) -> Records:
        """Those of offsets below `end`."""
        count = int(np.searchsorted(self.offsets, end))
        if count == len(self):
            return self
        return Records(
            self.topic,
            self.partition,
            self.keys.slice(0, count),
            self.values.slice(0, count),
            self.offsets[:count],
            self.times_ms[:count],
            self.headers,
        )


class Consumer:
    """A consumer of one partition at a time, for one thread at a time, that commits nothing. Headers are read if asked for."""

    def __init__(self, settings: Mapping[str, object], *, headers: bool = False) -> None:
        self._headers = headers
        self._handle: int | None = _consumer(settings)
        _poll_set_consumer(self._handle)
        self._queue = _queue_get_consumer(self._handle)
        self._pointers = np.zeros(0, np.int64)

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
            self._pointers = np.zeros(most, np.int64)
        count = _consume_batch(self._queue, int(timeout_s * 1000), self._pointers.ctypes.data, most)
        if count <= 0:
            return []
        found = self._pointers[:count]
        try:
            return list(_runs(found, headers=self._headers))
        finally:
            messages.give_back(found)

    def close(self) -> None:
        """Release connections and memory. Does nothing the second time."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _queue_destroy(self._queue)
            _consumer_close(handle)
            _destroy(handle)


def queue(producer: binding.Producer, topic: str, records: pa.RecordBatch, partition: int, *, skip: int = 0) -> int:
    """Queue records (columns key, value, time_ms) at a producer of the binding, in their order, copied.

    partition: -1 for the one of the record's key.
    skip: how many bytes of each value are left out, its first; none is shorter.

    No time is 0, which the client takes for now: what is read again would have another time than what was meant.

    Gives how many the client took before it refused one.
    """
    keys, values, times_ms = records.columns
    times = fixed(times_ms.to_numpy())
    if not times.all():
        raise InvariantBroken("record has the time 0", topic=topic)
    # An object of the binding holds the client's own handle first.
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__).value
    if handle is None:
        raise InvariantBroken("producer has no client", hint="use the pinned confluent-kafka")
    topic_handle = _topic_new(handle, topic.encode(), None)
    if topic_handle is None:
        return 0
    try:
        return messages.queue(handle, topic_handle, partition, held(keys), held(values), skip, times)
    finally:
        _topic_destroy(topic_handle)


def queue_but(
    producer: binding.Producer, topic: str, records: pa.RecordBatch, partition: int, *, skip: int = 0
) -> Iterator[Timed]:
    """`queue` all records. Gives each one that the client refuses, before it queues those behind it."""
    while len(records := records.slice(queue(producer, topic, records, partition, skip=skip))):
        key, value, time_ms = (column[0].as_py() for column in records.columns)
        yield key, None if value is None else value[skip:], time_ms
        records = records.slice(1)


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


def _runs(found: Integers, *, headers: bool) -> Iterator[Records | Event]:
    """Runs of records of one partition, and the events between them."""
    end = 0
    while end < len(found):
        start = end
        end, key_bytes, value_bytes = messages.run(messages.MEMORY, found, start)
        first = _Message(int(found[start]))
        yield (
            first.event() if first.code else _records(first, found[start:end], key_bytes, value_bytes, headers=headers)
        )


class _Message:
    """One message of the client, until it is given back."""

    def __init__(self, address: int) -> None:
        self._address = address
        begin = address // 8 - 1
        self._words = messages.MEMORY[begin : begin + messages.OFFSET + 1]

    @property
    def code(self) -> int:
        """Not 0 where it is an event."""
        return _lower(self._words[messages.ERR])

    @property
    def topic(self) -> str:
        topic = int(self._words[messages.TOPIC])
        return _topic_name(topic).decode() if topic else ""

    @property
    def partition(self) -> int:
        return _lower(self._words[messages.PARTITION])

    def event(self) -> Event:
        text = _message_errstr(self._address)
        said = text.decode(errors="replace") if text else ""
        return Event(self.code, said, self.topic, self.partition, int(self._words[messages.OFFSET]))


def _lower(word: np.int64) -> int:
    """The number in the lower half of a word."""
    return ctypes.c_int32(int(word) & 0xFFFFFFFF).value


def _records(first: _Message, found: Integers, key_bytes: int, value_bytes: int, *, headers: bool) -> Records:
    if max(key_bytes, value_bytes) > np.iinfo(np.int32).max:
        raise InvariantBroken("client gives more at once than a column can hold", bytes=max(key_bytes, value_bytes))
    keys, values = _Field.of(len(found), key_bytes), _Field.of(len(found), value_bytes)
    offsets, times_ms = np.empty(len(found), np.int64), np.empty(len(found), np.int64)
    messages.copy(messages.MEMORY, found, keys.place, values.place, offsets, times_ms)
    pairs = _headers(found.tolist()) if headers else ()
    return Records(first.topic, first.partition, keys.column(), values.column(), offsets, times_ms, pairs)


@dataclass(frozen=True)
class _Field:
    """Room for one field of each record: its bytes, where each ends behind the 0 at which the first begins, its nulls."""

    data: pa.Buffer
    ends: npt.NDArray[np.int32]
    nulls: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, count: int, size: int) -> _Field:
        return cls(pa.allocate_buffer(size), np.empty(count + 1, np.int32), np.empty(count, np.bool_))

    @property
    def place(self) -> Field:
        return self.data.address, self.ends, self.nulls

    def column(self) -> pa.BinaryArray:
        return column_of(self.data, self.ends, self.nulls)


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
