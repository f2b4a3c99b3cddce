CREATE TABLE t (k INT PRIMARY KEY, v INT) WITH (kafka_topic='t', value_format='JSON', window_type='tumbling', window_size='3 moons');
