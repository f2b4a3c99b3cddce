"""Transactions as readers of what is committed see them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from statestore.config import KafkaConfig
from statestore.kafka.admin import Admin
from tests.support.waiting import TooLate, await_

# An open one whose producer hangs or is dead stays until its time-out, and readers do not wait for it.
_WAIT_S = 3.0


def await_ended(bootstrap: str, topic: str, *, partitions: int, client: Mapping[str, str] | None = None) -> None:
    """Wait until transactions that were committed before the call can be read.

    The broker answers a commit when it has decided it, and ends the transaction in each partition a moment later: on a
    busy machine, who reads at once up to the end of what is stable misses it.
    """
    admin = Admin(KafkaConfig(bootstrap, client=dict(client or {})))
    ends = admin.ends(topic, partitions=partitions)

    def ended() -> bool:
        stable = admin.stable_ends(topic, partitions=partitions)
        return all(stable[number] >= end for number, end in ends.items())

    with suppress(TooLate):
        await_("every transaction has ended", ended, _WAIT_S)
