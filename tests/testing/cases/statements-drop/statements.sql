CREATE STREAM I (k INT KEY, a STRING) WITH (kafka_topic='i', value_format='JSON');
DROP STREAM I;
CREATE STREAM I (k INT KEY, b STRING) WITH (kafka_topic='i', value_format='JSON');
CREATE STREAM O AS SELECT * FROM I;
