CREATE STREAM s (k STRING KEY, n INT, due DATE) WITH (kafka_topic='s', value_format='JSON');
CREATE STREAM o AS SELECT k, AS_MAP(ARRAY[1], ARRAY[2]) AS r FROM s;
