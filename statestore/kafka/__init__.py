"""Kafka, as this project uses it. The only folder that imports the client.

    connection.py   what every client of it has in common: settings, errors, questions asked again
    admin.py        topics, settings, groups
    producer.py     a transaction: begin, produce, send offsets, commit
    reader.py       a log from an offset to its end, record by record
    blocks.py       the same in columns, a range whole or not at all; for large logs and input
    librdkafka.py   the client's messages as columns and columns as its messages, by the loops of messages.py

Errors of the client become ours here and nowhere else: retriable ones are retried inside the client and within the time
limit, then `Unavailable`; abortable ones are `TransactionAborted`; fatal ones are `ProducerFatal`.
"""
