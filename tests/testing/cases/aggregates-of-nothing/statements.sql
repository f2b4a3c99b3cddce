CREATE STREAM t (id VARCHAR KEY, v BIGINT) WITH (kafka_topic='test_topic', value_format='JSON');
CREATE TABLE o AS SELECT id, SUM(v) AS s, AVG(v) AS a, COUNT(v) AS n, MAX(v) AS m FROM t GROUP BY id HAVING COUNT(*) <> 2 EMIT CHANGES;
