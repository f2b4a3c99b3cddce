CREATE STREAM s (k VARCHAR KEY, n INT, note VARCHAR) WITH (kafka_topic='s', value_format='json');
CREATE TABLE t AS SELECT k, SUM(n) AS total FROM s GROUP BY k EMIT CHANGES;
INSERT INTO s (ROWTIME, k, n) VALUES (5, 'a', 1);
INSERT INTO s (ROWTIME, k, n, note) VALUES (6, 'b', -2, 'second');
