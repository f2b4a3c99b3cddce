CREATE STREAM s (k VARCHAR KEY, n INT) WITH (kafka_topic='s', value_format='json');
CREATE TABLE t AS SELECT k, SUM(n) AS total FROM s GROUP BY k EMIT CHANGES;
INSERT INTO t (k, total) VALUES ('a', 1);
