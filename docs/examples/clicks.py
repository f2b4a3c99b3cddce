"""Clicks per user and minute: a transactional window store beside a Kafka loop of your own."""

import sys
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from statestore.config import KafkaConfig, StreamConfig
from statestore.context import RecordContext
from statestore.stores import persistent_transactional_window_store, window_store_builder
from statestore.streamtask import StreamTask
from statestore.typed.serdes import LONG, STRING

MINUTE_MS = 60_000
brokers, source, target = sys.argv[1:]
clicks = window_store_builder(
    persistent_transactional_window_store("clicks", 60 * MINUTE_MS, MINUTE_MS), STRING, LONG
).build()
config = StreamConfig("clicks-per-minute", KafkaConfig(brokers), (source,), partition=0, folder=Path("state"))
consumer = Consumer({"bootstrap.servers": brokers, "group.id": "clicks-reader", "enable.auto.commit": False})

with StreamTask(config, [clicks]) as task:
    consumer.assign([TopicPartition(source, 0, task.next_offset(source))])
    while True:
        message = consumer.poll(0.1)
        if message is None or message.error():
            task.commit_if_due()
            continue
        time_ms = message.timestamp()[1]
        task.take(RecordContext(source, 0, message.offset(), time_ms))
        user, minute = message.key().decode(), time_ms - time_ms % MINUTE_MS
        count = (clicks.fetch_one(user, minute) or 0) + 1
        clicks.put(user, count, minute)
        task.send(target, key=message.key(), value=str(count).encode())
