CREATE STREAM s (k INT KEY, a adress) WITH (kafka_topic='s', value_format='JSON');
