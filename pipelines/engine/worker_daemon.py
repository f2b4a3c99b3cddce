"""Spark's Python daemon with what our workers need already imported.

Spark forks a worker from its daemon for every task that finds no idle one, also after each failed job. Importing Arrow,
Flight and pandas anew takes a second of CPU in each of them; imported before the fork it is shared. Nothing here opens
a connection, a file or a thread: those do not survive a fork.

A worker collects garbage after every task. What is imported is taken out of that: going through all of it took half a
second of CPU a task, two thirds of all that workers did in small batches.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.flight
import pyarrow.json  # noqa: F401
import pyspark.daemon
import pyspark.sql.pandas.serializers
import pyspark.worker

import pipelines.engine.decode
import pipelines.engine.exchange  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()
