CREATE STREAM t (k STRING KEY, a INT) WITH (kafka_topic='t', value_format='JSON');
CREATE STREAM o AS SELECT k, GEO_DISTANCE(1, 2, 3, 4, 'league') AS d FROM t;
