CREATE STREAM INPUT (K STRING KEY, ID bigint, NAME varchar) WITH (kafka_topic='input', value_format='JSON');
CREATE STREAM A AS SELECT ID FROM INPUT;
