"""A client's first question is answered as soon as the later ones.

librdkafka gives its bootstrap connection up with the first answer, and asks for what was lost with it seconds later.
Without `_connected` up to one reader in twenty waited three seconds.
"""

import time
from concurrent.futures import ThreadPoolExecutor

from statestore.config import KafkaConfig
from statestore.kafka import Admin, Reader

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
