CREATE STREAM t (k STRING KEY, a INT) WITH (kafka_topic='t', value_format='DELIMITED');
CREATE TABLE o AS SELECT k, AVG(a) AS x FROM t GROUP BY k;
