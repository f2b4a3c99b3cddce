CREATE STREAM TEST (K STRING KEY, e VARCHAR)
  WITH (kafka_topic='t', value_format='JSON', timestamp='e', timestamp_format='yyyy-MM-dd''T''HH:mm:ss.SX');
CREATE STREAM TS AS select K, stringtotimestamp(e, 'yyyy-MM-dd''T''HH:mm:ss.SX') as ets from test;
