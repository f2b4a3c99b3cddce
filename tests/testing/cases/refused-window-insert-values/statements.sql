CREATE STREAM means (room STRING KEY, mean DOUBLE) WITH (kafka_topic='means', value_format='JSON', window_type='Hopping', window_size='1 minute');
INSERT INTO means VALUES ('hall', 20.5);
