CREATE STREAM s (k STRING KEY, n INT, due DATE) WITH (kafka_topic='s', value_format='JSON');
CREATE STREAM o AS SELECT k, LEAST() AS r FROM s;
