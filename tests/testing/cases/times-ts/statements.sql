CREATE STREAM I (K STRING KEY, ts BIGINT) with (kafka_topic='input', value_format='json', timestamp='ts');
CREATE STREAM T as SELECT k, rowtime as r FROM i;
