CREATE STREAM I (k INT KEY, a INT, b BIGINT, s STRING, d DOUBLE, arr ARRAY<INT>)
  WITH (kafka_topic='i', value_format='JSON');
CREATE STREAM O WITH(key_format='DELIMITED') AS SELECT k, s FROM I PARTITION BY null;
