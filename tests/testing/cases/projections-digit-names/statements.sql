CREATE STREAM races (id INT KEY, 1st STRING, `2nd` STRING) WITH (kafka_topic='races', value_format='JSON');
CREATE STREAM podium AS SELECT id, 1st, `2nd` AS 2nd, UCASE(1st) AS 1st_loud FROM races;
