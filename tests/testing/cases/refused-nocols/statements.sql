CREATE STREAM X WITH (kafka_topic='t', value_format='DELIMITED');
