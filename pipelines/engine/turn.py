"""A turn: what changes from batch to batch while a job stays as it is.

Spark analyses a job once, which takes as long as a small batch does; what the job's functions must know of their batch
they ask for when they run. A turn travels beside the job, as a local property. Spark shows those in its page and in
event logs: a turn says offsets and sockets, and nothing secret.

    driver    turn.announce(context)    in the thread that submits the job
    worker    Turn.now()                in a task of the job
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pyspark import SparkContext, TaskContext

from pipelines.engine.exchange import Exchange
from pipelines.engine.resultlimit import ResultLimit
from statestore.batches import Range
from statestore.errors import InvariantBroken

PROPERTY = "rollforward.turn"


@dataclass(frozen=True)
class Turn:
    """One batch's ranges in Kafka, and where its tasks are served."""

    exchange: Exchange
    ranges: tuple[Range, ...]

    def announce(self, context: SparkContext) -> None:
        """Give the turn to every job that this thread submits from now on."""
        context.setLocalProperty(PROPERTY, json.dumps(asdict(self)))

    @classmethod
    def now(cls) -> Turn:
        """The turn of the Spark task that runs here. Raises `InvariantBroken` where none was announced."""
        context = TaskContext.get()
        said = None if context is None else context.getLocalProperty(PROPERTY)
        if said is None:
            raise InvariantBroken("a job's task has no turn")
        found = json.loads(said)
        exchange = found["exchange"]
        exchange |= {name: tuple(exchange[name]) for name in ("sockets", "after")}
        exchange["results"] = ResultLimit(**exchange["results"])
        return cls(Exchange(**exchange), tuple(Range(**each) for each in found["ranges"]))


def exchange_of_turn() -> Exchange:
    """The exchange of the turn."""
    return Turn.now().exchange
