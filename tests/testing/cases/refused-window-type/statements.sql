CREATE STREAM s (k INT KEY, v INT) WITH (kafka_topic='s', value_format='JSON', window_type='sliding', window_size='1 hour');
