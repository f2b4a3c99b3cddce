CREATE STREAM X (K STRING KEY, d DECIMAL(5,2)) WITH (kafka_topic='x', value_format='JSON');
CREATE TABLE O AS SELECT k, SUM(d) s, MIN(d) as m FROM X GROUP BY k;
