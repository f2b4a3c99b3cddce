CREATE STREAM t (k STRING KEY, b BYTES) WITH (kafka_topic='t', value_format='JSON');
CREATE TABLE o AS SELECT k, TOPK(b, 2) AS t, TOPKDISTINCT(b, 2) AS d FROM t GROUP BY k;
