CREATE STREAM I (k INT KEY, a INT, b BIGINT, s STRING, d DOUBLE, arr ARRAY<INT>)
  WITH (kafka_topic='i', value_format='JSON');
CREATE TABLE T (k INT PRIMARY KEY, a INT, s STRING) WITH (kafka_topic='t', value_format='JSON');
INSERT INTO T SELECT * FROM I;
