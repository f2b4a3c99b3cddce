CREATE STREAM I (a INT, b STRING) WITH (kafka_topic='i', value_format='JSON');
CREATE STREAM O AS SELECT b FROM I;
