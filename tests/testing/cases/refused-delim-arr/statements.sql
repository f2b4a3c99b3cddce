CREATE STREAM X (a ARRAY<INT>) WITH (kafka_topic='t', value_format='DELIMITED');
