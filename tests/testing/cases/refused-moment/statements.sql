CREATE STREAM t (k STRING KEY, a INT) WITH (kafka_topic='t', value_format='JSON');
CREATE STREAM o AS SELECT k, a FROM t WHERE ROWTIME > '2018-13';
