"""The compiled loops that a record passes: loaded by each process before anybody waits for them."""

from __future__ import annotations

from pipelines.engine import jsonscan, jsonshape, jsontext
from statestore import partitioner
from statestore.kafka import messages


def ready() -> None:
    """Have the machine code of all of them."""
    messages.ready()
    jsonshape.ready()
    jsonscan.ready()
    jsontext.ready()
    partitioner.ready()
