CREATE STREAM t (k STRING KEY, i INT, b BIGINT, d DECIMAL(9, 2), x DOUBLE) WITH (kafka_topic='t', value_format='JSON');
CREATE STREAM o AS SELECT k, GREATEST(i, b, 5) AS g FROM t;
