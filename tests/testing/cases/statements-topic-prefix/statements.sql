SET 'ksql.output.topic.name.prefix' = 'pre-';
CREATE STREAM t (k STRING KEY, a INT) WITH (kafka_topic='t', value_format='JSON');
CREATE STREAM o AS SELECT * FROM t;
CREATE STREAM p WITH (kafka_topic='named') AS SELECT * FROM t;
UNSET 'ksql.output.topic.name.prefix';
CREATE STREAM q AS SELECT * FROM o;
