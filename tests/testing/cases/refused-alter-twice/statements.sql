CREATE STREAM a (k STRING KEY, name VARCHAR) WITH (kafka_topic='t', value_format='JSON');
ALTER STREAM a ADD COLUMN name STRING;
