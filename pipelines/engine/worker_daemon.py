"""Spark's Python daemon with what our workers need already imported.

Spark forks a worker from its daemon for every task that finds no idle one, also after each failed job. Importing Arrow,
Flight and the Kafka client anew takes a second of CPU in each of them; imported before the fork it is shared, as are compiled loops. Nothing
here opens a connection, a file or a thread: those do not survive a fork.

A worker collects garbage after every task. What is imported is taken out of that: going through all of it took half a
second of CPU a task, two thirds of all that workers did in small batches. Within a task nothing is collected: blocks of
records are many objects that live for a moment and make no cycles.
"""

from __future__ import annotations

import gc

import pyarrow.compute
import pyarrow.flight
import pyarrow.json  # noqa: F401
import pyspark.daemon
import pyspark.sql.pandas.serializers
import pyspark.worker

import pipelines.engine.exchange
import pipelines.engine.input  # noqa: F401
from pipelines.engine import loops
from statestore.no_pandas import keep_pandas_out

if __name__ == "__main__":
    keep_pandas_out()
    loops.ready()
    gc.disable()
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()
