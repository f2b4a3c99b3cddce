CREATE STREAM s (a INT) WITH (kafka_topic='s', value_format='JSON', format='JSON');
