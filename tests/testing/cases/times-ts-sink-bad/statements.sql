CREATE STREAM TEST (K STRING KEY, ID bigint) WITH (kafka_topic='t', value_format='JSON');
CREATE STREAM TS WITH (timestamp='sink_ts') AS SELECT K, id as sink_ts, id FROM test;
