"""The systems that are compared, each behind the same few methods."""

from tests.benchmarks.systems.base import Broker, NotPossible, System
from tests.benchmarks.systems.kafka_streams import KafkaStreams
from tests.benchmarks.systems.quix import QuixStreams
from tests.benchmarks.systems.rollforward import Rollforward
from tests.benchmarks.systems.spark import Spark

SYSTEMS: dict[str, type[System]] = {
    system.name: system
    for system in (
        Rollforward,
        Rollforward.without_transactions(),
        KafkaStreams,
        QuixStreams,
        Spark,
        Spark.with_python_state(),
    )
}

__all__ = ["SYSTEMS", "Broker", "NotPossible", "System"]
