"""A client's first question is answered as soon as the later ones.

librdkafka gives its bootstrap connection up with the first answer, and asks for what was lost with it seconds later.
Without `_connected` up to one reader in twenty waited three seconds.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from statestore.config import KafkaConfig
from statestore.errors import Unavailable
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader

READERS = 240


def test_no_reader_waits_for_a_question_that_was_lost(kafka: str, unique: str) -> None:
    Admin(KafkaConfig(kafka)).create(unique, partitions=1, settings={})

    def ask(_: int) -> float:
        began = time.monotonic()
        assert Reader(KafkaConfig(kafka)).begin_and_end(unique, 0) == (0, 0)
        return time.monotonic() - began

    with ThreadPoolExecutor(2) as pool:
        # A question that is lost takes three seconds.
        assert max(pool.map(ask, range(READERS))) < 2.9


@pytest.mark.parametrize(
    "ask",
    [
        lambda config, topic: Reader(config).begin_and_end(topic, 0),
        lambda config, topic: Reader(config).stable_end(topic, 0),
        lambda config, topic: Admin(config).ends(topic, partitions=1),
        lambda config, topic: Admin(config).at_time(topic, 0, partitions=1),
        lambda config, topic: Admin(config).trim(topic, 0, before=0),
    ],
    ids=["begin_and_end", "stable_end", "ends", "at_time", "trim"],
)
def test_the_client_is_never_left_to_look_for_a_leader(
    ask: Callable[[KafkaConfig, str], object], kafka: str, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """librdkafka's own search for a leader ends in a segmentation fault once in ten thousand times: see `require_led`."""
    Admin(KafkaConfig(kafka)).create(unique, partitions=1, settings={})
    capfd.readouterr()
    ask(KafkaConfig(kafka, client={"debug": "metadata", "log_level": "7"}), unique)
    log = capfd.readouterr().err
    assert f"Topic {unique} [0] Leader" in log
    assert "query partition leaders" not in log


def test_a_topic_that_is_not_there_is_an_error_in_the_end(kafka: str, unique: str) -> None:
    with pytest.raises(Unavailable, match=f"no broker leads {unique}-0"):
        Reader(KafkaConfig(kafka, request_timeout_s=0.2)).begin_and_end(unique, 0)
    assert {} == Admin(KafkaConfig(kafka)).describe([unique])
