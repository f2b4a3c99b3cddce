CREATE STREAM t (k STRING KEY, a STRING) WITH (kafka_topic='t', value_format='JSON');
CREATE STREAM o AS SELECT * FROM t WHERE ABS(bob) < 10;
