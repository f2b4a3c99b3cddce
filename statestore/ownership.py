"""Taking a transactional id over without evicting a newer owner.

`init_transactions` fences whoever held the id, newer or not. So the newest `driver started` is read before it, to
leave a newer owner alone, and after it, because one may have come in between; that one will take the id back.

Epochs are offsets, so after Kafka was put back to an earlier state the newest driver's may be smaller than that of one
which started in the time that is lost, and still runs. Only the driver whose start is the newest owns anything.
"""

from __future__ import annotations

from contextlib import ExitStack

from statestore.batches import BatchesLog, Standing
from statestore.config import KafkaConfig, TaskSpec
from statestore.errors import Fenced
from statestore.failpoints import reach
from statestore.kafka.producer import TransactionalProducer


def require_newest(log: BatchesLog, epoch: int, who: str) -> None:
    """Raise `Fenced` unless the driver of `epoch` is the newest that the log knows."""
    _require(log.newest_epoch(), epoch, who)


def require_newest_at_once(log: BatchesLog, epoch: int, who: str) -> None:
    """`require_newest` for whoever may have left a transaction open on the driver's partition.

    Until a new producer of the id has ended that one, nobody can read the log to its end. Whether another owner lives is
    looked at without that first, and is waited for only where one shows.
    """
    if log.driver_log(uncommitted=True).epoch != epoch:
        require_newest(log, epoch, who)


def _require(newest: int, epoch: int, who: str) -> None:
    if newest > epoch:
        raise Fenced(
            "a newer driver owns the query",
            owner=who,
            epoch=epoch,
            newest=newest,
            hint="nothing to do: the newer driver goes on with the work",
        )
    if newest < epoch:
        raise Fenced(
            "kafka has lost this driver's start",
            owner=who,
            epoch=epoch,
            newest=newest,
            hint="start the pipeline again, unless that was done since kafka was put back",
        )


def own(
    config: KafkaConfig, spec: TaskSpec, log: BatchesLog, epoch: int, *, transactions: bool = True
) -> tuple[TransactionalProducer, Standing]:
    """A producer that holds the task's id, every older transaction of it finished, and where task and query stand then.

    Raises `Fenced`.
    """
    transactional_id = spec.transactional_id
    # It connects meanwhile.
    producer = TransactionalProducer(config, transactional_id, transactions=transactions)
    with ExitStack() as undo:
        undo.callback(producer.close)
        require_newest(log, epoch, transactional_id)
        reach("own.before-init")
        producer.init()
        reach("own.after-init")
        standing = log.standing(spec.number)
        _require(standing.newest_epoch, epoch, transactional_id)
        undo.pop_all()
    return producer, standing
