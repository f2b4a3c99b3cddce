CREATE STREAM s (k INT KEY, a ARRAY<ARRAY<INT>>, n INT) WITH (kafka_topic='s', value_format='JSON');
 CREATE TABLE o AS SELECT n, COUNT(*), EXPLODE(a) FROM s GROUP BY n;
