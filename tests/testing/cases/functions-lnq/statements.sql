CREATE STREAM t (K STRING KEY, i INT) WITH (kafka_topic='t', value_format='JSON');
CREATE STREAM O AS SELECT K, LN(i) as a, SQRT(i) as b, ACOS(i) as c FROM t;
