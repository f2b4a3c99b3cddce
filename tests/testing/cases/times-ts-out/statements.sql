CREATE STREAM I (k INT KEY, a STRING, b BIGINT)
  WITH (kafka_topic='i', value_format='JSON', timestamp='a', timestamp_format='yyyy-MM-dd');
CREATE STREAM O AS SELECT * FROM I;
CREATE STREAM P WITH(timestamp='b') AS SELECT * FROM I;
