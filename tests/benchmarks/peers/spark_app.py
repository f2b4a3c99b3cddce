"""The workloads of the benchmark on Spark's own state and its Kafka sink, which is at-least-once.

Arguments: workload, bootstrap servers, name, source topic, work folder, records a batch at most, `aggregation` or
`python` (transformWithState). Results go to the topics `<name>-<table>`; the checkpoint folder tells the progress. The
state store is RocksDB with changelog checkpoints, the fastest that Spark has.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

BID = "auction BIGINT, price BIGINT, bidder BIGINT, dateTime BIGINT"
FLIGHT = "year INT, month INT, day INT, dep_delay INT, arr_delay INT, carrier STRING, origin STRING, dest STRING, distance INT"
PARTITIONS = 4


class Totals(StatefulProcessor):
    """Count, sum and maximum of price as one value of transformWithState."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("s", "n BIGINT, total BIGINT, top BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total, top = self._state.get() or (0, 0, 0)
        for row in rows:
            n, total, top = n + 1, total + row.price, max(top, row.price)
        self._state.update((n, total, top))
        yield Row(key=str(key[0]), N=n, TOTAL=total, TOP=top)

    def close(self) -> None:
        pass


def session(folder: str) -> SparkSession:
    conf = {
        "spark.driver.extraClassPath": os.environ["CONNECTOR_JARS"],
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.local.dir": f"{folder}/tmp",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("peer")
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def aggregated(workload: str, bids: DataFrame) -> dict[str, DataFrame]:
    """Per table a frame with the column `key` and the result's columns."""
    if workload == "key-totals":
        by = bids.groupBy(f.col("auction").cast("string").alias("key"))
        return {"totals": by.agg(f.count("*").alias("N"), f.sum("price").alias("TOTAL"), f.max("price").alias("TOP"))}
    if workload == "last-per-key":
        by = bids.groupBy(f.concat_ws(":", "auction", "bidder").alias("key"))
        newest = by.agg(f.max(f.struct("dateTime", "price")).alias("m"))
        return {"last": newest.select("key", f.col("m.price").alias("PRICE"), f.col("m.dateTime").alias("AT"))}
    if workload == "auction-day":
        return {"days": auction_days(bids)}
    if workload == "stateless":
        high = bids.where("price >= 5000")
        return {"high": high.selectExpr("string(auction) key", "auction AUCTION", "dateTime AT", "price * 2 DOUBLED")}
    return flights(bids)


def auction_days(bids: DataFrame) -> DataFrame:
    rank2 = (f.col("price") >= 10_000) & (f.col("price") < 1_000_000)
    rank3 = f.col("price") >= 1_000_000
    key = f.concat_ws(":", "auction", f.expr("dateTime div 86400000"))
    return bids.groupBy(key.alias("key")).agg(
        f.count("*").alias("BIDS"),
        f.count_if(f.col("price") < 10_000).alias("RANK1"),
        f.count_if(rank2).alias("RANK2"),
        f.count_if(rank3).alias("RANK3"),
        f.sum(f.when(rank2, f.col("price")).otherwise(0)).alias("RANK2_TOTAL"),
        f.sum(f.when(rank3, f.col("price")).otherwise(0)).alias("RANK3_TOTAL"),
        f.min("price").alias("LOWEST"),
        f.max("price").alias("HIGHEST"),
        f.avg("price").alias("MEAN"),
        f.sum("price").alias("TOTAL"),
    )


def flights(rows: DataFrame) -> dict[str, DataFrame]:
    late = f.count_if(f.col("dep_delay") > 15)
    carriers = rows.groupBy(f.col("carrier").alias("key")).agg(
        f.count("*").alias("FLIGHTS"),
        f.count("dep_delay").alias("DEPARTED"),
        late.alias("LATE"),
        f.sum("distance").alias("TOTAL_DISTANCE"),
        f.coalesce(f.avg("dep_delay"), f.lit(0.0)).alias("MEAN_DELAY"),
        (late / f.count("dep_delay")).alias("LATE_SHARE"),
        f.max("dep_delay").alias("WORST_DELAY"),
        f.min("dep_delay").alias("BEST_DELAY"),
    )
    routes = rows.groupBy(f.concat_ws(":", "origin", "dest", "year", "month", "day").alias("key")).agg(
        f.count("*").alias("FLIGHTS"),
        f.coalesce(f.avg("arr_delay"), f.lit(0.0)).alias("MEAN_ARR_DELAY"),
        f.max("arr_delay").alias("WORST_ARR_DELAY"),
    )
    return {"carrier_delays": carriers, "route_days": routes}


def with_python_state(bids: DataFrame) -> dict[str, DataFrame]:
    totals = bids.groupBy("auction").transformWithState(
        statefulProcessor=Totals(),
        outputStructType="key STRING, N BIGINT, TOTAL BIGINT, TOP BIGINT",
        outputMode="Update",
        timeMode="None",
    )
    return {"totals": totals}


def main() -> None:
    workload, bootstrap, name, source, folder, batch, kind = sys.argv[1:]
    spark = session(folder)
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .option("kafka.max.poll.records", "20000")
        .option("kafka.max.partition.fetch.bytes", str(16 * 1024 * 1024))
        .load()
    )
    schema = FLIGHT if workload == "flights" else BID
    rows = raw.select(f.from_json(f.col("value").cast("string"), schema).alias("v")).select("v.*")
    tables = with_python_state(rows) if kind == "python" else aggregated(workload, rows)
    for table, frame in tables.items():
        columns = [column for column in frame.columns if column != "key"]
        (
            frame.select("key", f.to_json(f.struct(*columns), {"ignoreNullFields": "false"}).alias("value"))
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("kafka.compression.type", "lz4")
            .option("topic", f"{name}-{table}")
            .option("checkpointLocation", f"{folder}/checkpoint/{table}")
            .outputMode("append" if workload == "stateless" else "update")
            .trigger(processingTime=f"{os.environ['COMMIT_INTERVAL_MS']} milliseconds")
            .start()
        )
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
