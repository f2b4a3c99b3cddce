CREATE STREAM s (v INT) WITH (kafka_topic='s', value_format='JSON', window_type='session');
