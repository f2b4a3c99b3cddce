CREATE STREAM INPUT (K STRING KEY, ID bigint, NAME varchar) WITH (kafka_topic='input', value_format='JSON');
CREATE STREAM S1 as SELECT k, id*2 as x, ucase(name) FROM input;
