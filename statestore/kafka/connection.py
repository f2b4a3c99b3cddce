"""What every client of the cluster has in common: settings, the first connection, which errors pass, questions asked again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, TypeVar

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from statestore.config import KafkaConfig
from statestore.errors import Unavailable

Answer = TypeVar("Answer")
Connecting = TypeVar("Connecting", AdminClient, ck.Producer)
PARTITION_END = ck.KafkaError._PARTITION_EOF
LOST_ITS_PLACE = ck.KafkaError._AUTO_OFFSET_RESET
DEFINITE = {
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ck.KafkaError._UNKNOWN_TOPIC,
    ck.KafkaError._UNKNOWN_PARTITION,
    ck.KafkaError._AUTHENTICATION,
}
_PASSING = {
    ck.KafkaError._TRANSPORT,
    ck.KafkaError._ALL_BROKERS_DOWN,
    ck.KafkaError._TIMED_OUT,
    # A broker that has just started knows a topic before it leads it.
    ck.KafkaError._NOENT,
    ck.KafkaError.FENCED_LEADER_EPOCH,
    ck.KafkaError.UNKNOWN_LEADER_EPOCH,
    ck.KafkaError.NOT_LEADER_FOR_PARTITION,
    ck.KafkaError.LEADER_NOT_AVAILABLE,
    ck.KafkaError.REQUEST_TIMED_OUT,
    ck.KafkaError.NETWORK_EXCEPTION,
    ck.KafkaError.NOT_COORDINATOR,
    ck.KafkaError.COORDINATOR_NOT_AVAILABLE,
    ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ck.KafkaError.UNSTABLE_OFFSET_COMMIT,
}


def client_settings(config: KafkaConfig, **settings: object) -> dict[str, Any]:
    """The settings of every client, and those given."""
    return {
        "bootstrap.servers": config.bootstrap_servers,
        "socket.keepalive.enable": True,
        # Half of it is also how long the client waits before it connects to a second broker: with the default 50 ms.
        "reconnect.backoff.ms": 20,
        "log_level": 2,
        **config.client,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


def connected(client: Connecting) -> Connecting:
    """The client, once it is connected to a broker.

    The first answer of all ends the bootstrap connection. What else is being asked over it is lost, and asked again
    after three seconds (offsets) or half a second (the coordinator of a transaction). So there are two questions: the
    second waits for a connection that stays. Where no broker answers, whatever comes next says so.
    """
    for _ in range(2):
        with suppress(ck.KafkaException):
            client.list_topics("__transaction_state", timeout=2)
    return client


def unavailable(what: str, error: object, config: KafkaConfig, **fields: object) -> Unavailable:
    """The error of a call that Kafka did not answer."""
    return Unavailable(
        f"kafka does not answer: {what}",
        error=str(error),
        bootstrap_servers=config.bootstrap_servers,
        **fields,
        hint="check that the broker runs and that bootstrap_servers is right",
    )


def may_pass(error: BaseException) -> bool:
    """Whether asking again can help: the broker is away, or not the leader just now."""
    if not isinstance(error, ck.KafkaException):
        return False
    cause: ck.KafkaError = error.args[0]
    return cause.retriable() or cause.code() in _PASSING


def ask(
    admin: AdminClient | ck.Consumer, config: KafkaConfig, what: str, question: Callable[[], Answer], **fields: object
) -> Answer:
    """The answer of an admin request, asked again within the time limit; then `Unavailable`."""
    try:
        answer: Answer = _asking(config.request_timeout_s)(_answer, admin, question)
        return answer
    except ck.KafkaException as raised:
        raise unavailable(what, raised.args[0].str(), config, **fields) from raised.with_traceback(None)


@cache
def _asking(seconds: float) -> Retrying:
    """One for every question: each is in a cycle, so with a question of its own in it a client would outlive its last use."""
    return Retrying(
        retry=retry_if_exception(may_pass),
        stop=stop_after_delay(seconds),
        wait=wait_exponential_jitter(multiplier=0.05, max=1.0),
        before_sleep=lambda state: _refresh(state.args[0]),
        reraise=True,
    )


def _answer(_: AdminClient | ck.Consumer, question: Callable[[], Answer]) -> Answer:
    try:
        return question()
    except ck.KafkaException as raised:
        # Its traceback holds the client, and is held by the futures that it goes through.
        raised.__traceback__ = None
        raise


def _refresh(admin: AdminClient | ck.Consumer) -> None:
    """Fetch the metadata anew: the client repeats a request with the leader epoch it knows, which may be the error."""
    with suppress(ck.KafkaException):
        admin.list_topics(timeout=2)


class Asking:
    """What asks a cluster; it connects with its first question, or shares the connection of one that stands `beside`."""

    def __init__(self, config: KafkaConfig, beside: Asking | None = None) -> None:
        self._config = config
        self._beside = beside

    @cached_property
    def _admin(self) -> AdminClient:
        if self._beside is not None:
            return self._beside._admin
        return connected(AdminClient(client_settings(self._config, allow_auto_create_topics=False)))

    @property
    def config(self) -> KafkaConfig:
        """How the cluster is reached."""
        return self._config

    def connect(self) -> None:
        """Be connected when the first question comes. Where no broker answers, that question says so."""
        _ = self._admin
