CREATE STREAM t (k STRING KEY, a INT) WITH (kafka_topic='t', value_format='KAFKA');
CREATE TABLE o WITH (value_format='JSON') AS SELECT a, COUNT(*) AS n FROM t GROUP BY a;
