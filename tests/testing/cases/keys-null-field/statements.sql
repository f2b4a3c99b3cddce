CREATE STREAM spots (at STRUCT<x INT, y INT> KEY, n INT) WITH (kafka_topic='spots', format='JSON');
CREATE STREAM copied AS SELECT * FROM spots;
