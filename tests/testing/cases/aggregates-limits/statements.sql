SET 'ksql.functions.collect_list.limit' = '2';
SET 'ksql.functions.collect_set.limit' = '3';
CREATE STREAM t (k STRING KEY, a INT) WITH (kafka_topic='t', value_format='JSON');
CREATE TABLE o AS SELECT k, COLLECT_LIST(a) AS l, COLLECT_SET(a) AS s FROM t GROUP BY k;
UNSET 'ksql.functions.collect_list.limit';
CREATE TABLE p AS SELECT k, COLLECT_LIST(a) AS l FROM t GROUP BY k;
