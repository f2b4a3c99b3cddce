CREATE STREAM s (k STRING KEY, n INT, due DATE) WITH (kafka_topic='s', value_format='JSON');
CREATE STREAM o AS SELECT k, LEAST(n, k) AS r FROM s;
