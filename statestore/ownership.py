"""Taking a transactional id over without evicting a newer owner.

`init_transactions` fences whoever held the id, newer or not. So the newest `driver started` is read before it, to
leave a newer owner alone, and after it, because one may have come in between; that one will take the id back.
"""

from __future__ import annotations

from statestore.batches import BatchesLog
from statestore.config import KafkaConfig
from statestore.errors import Fenced
from statestore.failpoints import reach
from statestore.kafka import TransactionalProducer


def require_newest(log: BatchesLog, epoch: int, who: str) -> None:
    """Raise `Fenced` if a driver newer than `epoch` has started."""
    newest = log.newest_epoch()
    if newest > epoch:
        raise Fenced(
            "a newer driver owns the query",
            owner=who,
            epoch=epoch,
            newest=newest,
            hint="nothing to do: the newer driver goes on with the work",
        )


def own(
    config: KafkaConfig, transactional_id: str, log: BatchesLog, epoch: int, *, transactions: bool = True
) -> TransactionalProducer:
    """A producer that holds the id, every older transaction of it finished. Raises `Fenced`."""
    require_newest(log, epoch, transactional_id)
    reach("own.before-init")
    producer = TransactionalProducer(config, transactional_id, transactions=transactions)
    producer.init()
    reach("own.after-init")
    require_newest(log, epoch, transactional_id)
    return producer
