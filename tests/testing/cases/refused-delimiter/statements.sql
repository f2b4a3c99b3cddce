CREATE STREAM s (a INT) WITH (kafka_topic='s', value_format='DELIMITED', value_delimiter='||');
