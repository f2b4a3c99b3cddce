CREATE STREAM I (k INT KEY, a STRING, b STRING)
  WITH (kafka_topic='i', value_format='DELIMITED', value_delimiter='TAB');
CREATE STREAM O WITH(value_delimiter='|') AS SELECT * FROM I;
