CREATE STREAM I (k INT KEY, a INT, b BIGINT, s STRING, d DOUBLE, arr ARRAY<INT>)
  WITH (kafka_topic='i', value_format='JSON');
CREATE STREAM O AS SELECT k, arr < arr FROM I;
