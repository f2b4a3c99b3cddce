CREATE STREAM t (k STRING KEY, a INT) WITH (kafka_topic='t', value_format='JSON');
CREATE STREAM o AS SELECT k, ROWTIME > '2018' AS late FROM t;
