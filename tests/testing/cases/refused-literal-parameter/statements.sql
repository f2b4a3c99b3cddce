CREATE STREAM t (k STRING KEY, a INT) WITH (kafka_topic='t', value_format='JSON');
CREATE TABLE o AS SELECT k, EARLIEST_BY_OFFSET(a, a) AS x FROM t GROUP BY k;
