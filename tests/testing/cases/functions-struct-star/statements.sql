CREATE STREAM I (k INT KEY, s STRUCT<a INT, b STRING>) WITH (kafka_topic='i', value_format='JSON');
CREATE STREAM O AS SELECT k, s->* FROM I;
